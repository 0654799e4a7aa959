"""Every family of the source documents: state dict in, then equal to the original in float32.

The originals' own masks go in as they are.
"""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support.originals import annotated, rebuilt, rmsnorm
from tests.support.originals.weights import shake
from tfexport.errors import CheckpointError, ConfigError, InputError
from tfexport.model_src import (
    AnnotatedTransformer,
    MultiheadAttention,
    RMSNormTransformer,
    TorchTransformer,
    Transformer,
    load_checkpoint,
)
from tfexport.model_src.masks import generate_mask_mat, subsequent_mask


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def load(model: nn.Module, folder: Path, *settings: str) -> Transformer:
    torch.save(model.state_dict(), folder / "model.pt")
    return load_checkpoint(folder, settings=settings).build()


# --- nn.Transformer, rebuilt -------------------------------------------------------------------


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


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
@pytest.mark.parametrize("batch_first", [True, False], ids=["batch-first", "sequence-first"])
@pytest.mark.parametrize("prefix", ["", "transformer."])
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


# --- the Annotated Transformer -----------------------------------------------------------------


@pytest.mark.parametrize("residual", ["pre", "res_post"])
@pytest.mark.parametrize("layers", [1, 3])
def test_annotated_transformer_equals_its_original(
    tmp_path: Path, residual: str, layers: int
) -> None:
    theirs = shake(annotated.Annotated(layers=layers, residual=residual))
    torch.save(theirs.state_dict(), tmp_path / "model.pt")
    settings = ["num_heads=4"] + (["norm_placement=res_post"] if residual == "res_post" else [])
    found = load_checkpoint(tmp_path, settings=settings)
    assert found.layout == "annotated"
    assert found.config.mask_fill == -1e9
    assert found.config.norm_eps == 1e-6
    src, tgt = torch.randint(0, 17, (3, 6)), torch.randint(0, 19, (3, 5))
    src_mask = torch.tensor([[1] * 6, [1, 1, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0]]).unsqueeze(1)
    tgt_mask = annotated.target_mask(torch.tensor([[1] * 5, [1, 1, 1, 0, 0], [0, 0, 1, 1, 1]]))
    ours = AnnotatedTransformer(found.build())
    # The last target begins with padding: its first rows see nothing at all, and spread evenly.
    close(ours(src, tgt, src_mask, tgt_mask), theirs(src, tgt, src_mask, tgt_mask))
    close(ours(src, tgt, src_mask.bool(), tgt_mask), theirs(src, tgt, src_mask, tgt_mask))


def test_subsequent_mask_of_the_notebook() -> None:
    assert torch.equal(subsequent_mask(4), annotated.target_mask(torch.ones(1, 4)))


def test_keep_mask_of_another_form_is_refused(tmp_path: Path) -> None:
    ours = AnnotatedTransformer(load(annotated.Annotated(), tmp_path, "num_heads=4"))
    src, tgt = torch.ones(2, 3, dtype=torch.long), torch.ones(2, 4, dtype=torch.long)
    with pytest.raises(InputError, match=r"keep-mask has shape \(2, 3\); expected \(B, T, S\)"):
        ours(src, tgt, torch.ones(2, 3).long(), None)
    with pytest.raises(InputError, match="keep-mask has dtype"):
        ours(src, tgt, torch.ones(2, 1, 3), None)


def test_annotated_table_is_the_files_own(tmp_path: Path) -> None:
    theirs = shake(annotated.Annotated())
    theirs.get_buffer("tgt_embed.1.pe").mul_(2.0)
    model = load(theirs, tmp_path, "num_heads=4")
    source = model.get_buffer("source_embedding.positions.table")
    target = model.get_buffer("target_embedding.positions.table")
    assert torch.equal(target, 2 * source)


# --- the RMSNorm Transformer -------------------------------------------------------------------


@pytest.fixture
def rms(tmp_path: Path) -> tuple[rmsnorm.RMSNormModel, RMSNormTransformer]:
    theirs = shake(rmsnorm.RMSNormModel())
    torch.save(theirs.state_dict(), tmp_path / "model.pt")
    found = load_checkpoint(tmp_path)
    assert found.layout == "rmsnorm"
    assert found.origins["num_heads"] == "weights"
    assert (found.config.num_heads, found.config.head_dim, found.config.d_model) == (3, 5, 12)
    assert (found.config.num_encoder_layers, found.config.num_decoder_layers) == (2, 3)
    return theirs, RMSNormTransformer(found.build())


@pytest.mark.parametrize("masked", [0, 1, 3, 5, None])
def test_rmsnorm_transformer_equals_its_original_under_its_own_mask(
    rms: tuple[rmsnorm.RMSNormModel, RMSNormTransformer], masked: int | None
) -> None:
    theirs, ours = rms
    source, target = torch.randint(0, 19, (2, 7)), torch.randint(0, 19, (2, 6))
    mask = None if masked is None else generate_mask_mat(6, masked)
    close(ours(source, target, mask), theirs(source, target, mask))
    if mask is not None:
        stacked = torch.stack([mask, mask])
        close(ours(source, target, stacked), theirs(source, target, stacked))


def test_rmsnorm_decoder_without_an_encoder_attends_to_itself(
    rms: tuple[rmsnorm.RMSNormModel, RMSNormTransformer],
) -> None:
    theirs, ours = rms
    target = torch.randint(0, 19, (2, 6))
    for mask in (None, generate_mask_mat(6, 5)):
        close(ours(None, target, mask), theirs(None, target, mask))


def test_mask_function_is_causal_at_its_longest_and_written_out_below() -> None:
    assert torch.equal(generate_mask_mat(6, 5), rmsnorm.causal(6))
    for masked in range(7):
        expected = [[6 - j + i <= masked for j in range(6)] for i in range(6)]
        assert generate_mask_mat(6, masked).tolist() == expected


def test_rmsnorm_mask_of_another_form_is_refused(
    rms: tuple[rmsnorm.RMSNormModel, RMSNormTransformer],
) -> None:
    with pytest.raises(InputError, match=r"expected bool \(T, T\) = \(6, 6\)"):
        rms[1](None, torch.zeros(2, 6, dtype=torch.long), torch.zeros(6, 5, dtype=torch.bool))


def test_missing_head_is_named(tmp_path: Path) -> None:
    state = rmsnorm.RMSNormModel().state_dict()
    gone = "decoder_blocks.1.multi_head_attention.attention_blocks.1.K_net.weight"
    del state[gone]
    torch.save(state, tmp_path / "model.pt")
    with pytest.raises(CheckpointError, match=re.escape(f"{gone} is missing")):
        load_checkpoint(tmp_path)


def test_heads_of_different_sizes_are_named(tmp_path: Path) -> None:
    state = rmsnorm.RMSNormModel().state_dict()
    state["encoder_blocks.0.multi_head_attention.attention_blocks.2.Q_net.weight"] = torch.ones(
        5, 9
    )
    torch.save(state, tmp_path / "model.pt")
    with pytest.raises(
        CheckpointError, match=r"the heads of encoder\.layers\.0\.self_attn\.q_proj"
    ):
        load_checkpoint(tmp_path)
