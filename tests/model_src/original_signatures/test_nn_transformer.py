"""The signatures of torch.nn, stock and rebuilt: equal to the originals under their masks."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.model_src.original_signatures.compare import close, load
from tests.support.combinations import few_of
from tests.support.originals import rebuilt
from tests.support.originals.weights import shake
from tfexport.errors import ConfigError, InputError
from tfexport.model_src import (
    MultiheadAttention,
    TorchTransformer,
    load_checkpoint,
)


def mask_of(kind: str, shape: tuple[int, ...]) -> Tensor | None:
    """An attention mask that leaves every row something to see."""
    blocked = torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.4
    blocked[..., 0] = False
    if kind == "none":
        return None
    if kind == "float":
        return torch.randn(shape).masked_fill(blocked, float("-inf"))
    return blocked.to(torch.uint8) if kind == "byte" else blocked


@pytest.mark.parametrize("separate", [False, True], ids=["packed", "separate"])
@pytest.mark.parametrize("bias", [False, True], ids=["no-bias", "bias"])
@pytest.mark.parametrize("kind", ["none", "bool", "byte", "float"])
@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("padding", ["none", "bool", "byte"])
@pytest.mark.parametrize("batch_first", [False, True], ids=["sequence-first", "batch-first"])
@pytest.mark.filterwarnings("ignore:Support for mismatched:UserWarning")
def test_attention_equals_torch_under_every_mask(
    separate: bool, bias: bool, kind: str, dims: int, padding: str, batch_first: bool
) -> None:
    batch, heads, target, source = 3, 2, 4, 5
    sizes: dict[str, Any] = {"kdim": 7, "vdim": 6} if separate else {}
    theirs = shake(nn.MultiheadAttention(8, heads, bias=bias, batch_first=batch_first, **sizes))
    ours = MultiheadAttention(8, heads, bias=bias, batch_first=batch_first, **sizes).eval()
    ours.load_torch_state_dict(theirs.state_dict())
    query = torch.randn(batch, target, 8)
    key = torch.randn(batch, source, sizes.get("kdim", 8))
    value = torch.randn(batch, source, sizes.get("vdim", 8))
    if not batch_first:
        query, key, value = query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1)
    shape = (target, source) if dims == 2 else (batch * heads, target, source)
    attn_mask = mask_of(kind, shape)
    keys = mask_of(padding, (batch, source))
    output, weights = ours(query, key, value, keys, True, attn_mask)
    expected, expected_weights = theirs(
        query,
        key,
        value,
        # torch has forgotten byte masks since; non-zero meant True.
        key_padding_mask=None if keys is None else keys != 0,
        attn_mask=attn_mask != 0 if kind == "byte" and attn_mask is not None else attn_mask,
    )
    close(output, expected)
    assert weights is not None
    close(weights, expected_weights)
    assert ours(query, key, value, need_weights=False)[1] is None


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        ({"attn_mask": torch.zeros(5, 4)}, r"has shape \(5, 4\); expected \(T, S\) = \(4, 5\) or"),
        ({"attn_mask": torch.zeros(3, 4, 5)}, r"expected .* or \(B \* H, T, S\) = \(6, 4, 5\)"),
        ({"attn_mask": torch.zeros(4, 5).long()}, "attn_mask has dtype torch.int64; expected bool"),
        ({"key_padding_mask": torch.zeros(5, 3).bool()}, r"expected \(B, S\) = \(3, 5\)"),
        ({"key_padding_mask": torch.zeros(3, 5)}, "key_padding_mask has dtype torch.float32"),
    ],
)
def test_mask_of_another_form_is_refused(masks: dict[str, Tensor], message: str) -> None:
    attention = MultiheadAttention(8, 2, batch_first=True)
    query, key = torch.randn(3, 4, 8), torch.randn(3, 5, 8)
    with pytest.raises(InputError, match=message):
        attention(query, key, key, **masks)


def test_heads_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ConfigError, match="embed_dim 8 is not divisible by num_heads 3"):
        MultiheadAttention(8, 3)


@pytest.mark.parametrize("activation", few_of(["relu", "gelu"], "gelu"))
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
@pytest.mark.parametrize("batch_first", [True, False], ids=["batch-first", "sequence-first"])
@pytest.mark.parametrize("prefix", few_of(["", "transformer."], "transformer."))
def test_rebuilt_transformer_equals_its_original(
    tmp_path: Path, activation: str, bias: bool, batch_first: bool, prefix: str
) -> None:
    theirs = shake(rebuilt.Rebuilt(activation=activation, bias=bias))
    state = {prefix + key: value for key, value in theirs.state_dict().items()}
    if not bias:  # the original's last norm has one all the same
        state |= {
            f"{prefix}{stack}.layer.norm{i}.bias": torch.zeros(16)
            for stack, count in (("encoder", 2), ("decoder", 3))
            for i in range(1, count + 1)
        }
    torch.save(state, tmp_path / "model.pt")
    words = ["num_heads=4", "num_encoder_layers=2", "num_decoder_layers=3"]
    found = load_checkpoint(tmp_path, settings=[*words, f"activation={activation}"])
    assert found.layout == "nn-transformer-rebuilt"
    ours = TorchTransformer.around(found.build(), batch_first)
    src, tgt = torch.randn(3, 6, 16), torch.randn(3, 5, 16)
    masks = {
        "src_mask": mask_of("bool", (6, 6)),
        "tgt_mask": ours.generate_square_subsequent_mask(5),
        "memory_mask": mask_of("float", (3 * 4, 5, 6)),
        "src_key_padding_mask": mask_of("bool", (3, 6)),
        "tgt_key_padding_mask": torch.tensor([[0, 0, 0, 0, 0], [0, 0, 0, 1, 1], [0] * 5]).bool(),
        "memory_key_padding_mask": mask_of("bool", (3, 6)),
    }
    expected = theirs(src, tgt, **masks)
    if batch_first:
        close(ours(src, tgt, **masks), expected)
    else:
        output = ours(src.transpose(0, 1), tgt.transpose(0, 1), **masks)
        close(output.transpose(0, 1), expected)
    close(TorchTransformer.around(found.build(), True)(src, tgt), theirs(src, tgt))


@pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
@pytest.mark.filterwarnings("ignore:enable_nested_tensor:UserWarning")
def test_bare_stock_transformer_equals_torch(tmp_path: Path, norm_first: bool) -> None:
    theirs = shake(nn.Transformer(16, 4, 2, 2, 24, norm_first=norm_first, batch_first=True))
    theirs.encoder.use_nested_tensor = False  # it would drop padded columns
    placement = "pre" if norm_first else "post"
    ours = load(theirs, tmp_path, "num_heads=4", f"norm_placement={placement}")
    src, tgt = torch.randn(2, 6, 16), torch.randn(2, 5, 16)
    mask = rebuilt.causal(5)
    padding = torch.tensor([[0] * 6, [0, 0, 0, 0, 1, 1]]).bool()
    output = TorchTransformer.around(ours, batch_first=True)(
        src, tgt, tgt_mask=mask, src_key_padding_mask=padding, memory_key_padding_mask=padding
    )
    expected = theirs(
        src, tgt, tgt_mask=mask != 0, src_key_padding_mask=padding, memory_key_padding_mask=padding
    )
    close(output, expected)


def test_the_callers_own_encoder_and_decoder_stand_in() -> None:
    class Doubled(nn.Module):
        def forward(self, x: Tensor, bias: Tensor) -> Tensor:
            return 2 * x

    sizes: dict[str, Any] = {"d_model": 8, "nhead": 2, "dim_feedforward": 12}
    own = TorchTransformer(**sizes, num_decoder_layers=1, batch_first=True).eval()
    decoder = own.transformer.decoder
    name = "layers.0.self_attn.q_proj.weight"
    weight = decoder.get_parameter(name).clone()
    model = TorchTransformer(
        **sizes, num_decoder_layers=1, custom_encoder=Doubled(), custom_decoder=decoder,
        batch_first=True,
    ).eval()  # fmt: skip
    kept = model.transformer.decoder.get_parameter(name)
    assert torch.equal(kept, weight), "its weights are left as they are"
    assert model(torch.randn(2, 3, 8), torch.randn(2, 4, 8)).shape == (2, 4, 8)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor:UserWarning")
def test_defaults_are_torchs() -> None:
    ours, theirs = TorchTransformer(), nn.Transformer()
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())
    assert ours.batch_first == theirs.batch_first is False
    assert ours.transformer.config.num_heads == theirs.nhead


def test_shared_layers_are_stored_once_and_applied_often() -> None:
    model = TorchTransformer(16, 4, 5, 7, 24, share_layers=True, positions_every_layer=True)
    assert len(model.transformer.encoder.get_submodule("layers")._modules) == 1
    assert model.transformer.config.num_decoder_layers == 7
    assert model.transformer.decoder.passes == 7


def test_subsequent_mask_of_torch() -> None:
    expected = nn.Transformer.generate_square_subsequent_mask(5)
    assert torch.equal(TorchTransformer.generate_square_subsequent_mask(5), expected)


def test_signature_over_vectors_refuses_a_model_over_ids(demo_folder: Path) -> None:
    with pytest.raises(ConfigError, match="this signature takes vectors"):
        TorchTransformer.around(load_checkpoint(demo_folder).build())
