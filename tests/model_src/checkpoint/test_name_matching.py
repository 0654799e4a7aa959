"""Names of many styles, matched with the own ones, and compared with each style's own forward.

Axes: B batch, S source, T target, V vocabulary.
"""

import json
import re
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.export.incremental.own_case import draw_inputs, draw_target, logits
from tests.export.recognition.styles import STYLES, Style
from tests.support.combinations import few_of
from tests.support.paths import REPOSITORY
from tfexport.errors import CheckpointError, ConfigError
from tfexport.model_src import TransformerConfig, build_transformer, load_checkpoint
from tfexport.model_src.checkpoint import read
from tfexport.model_src.checkpoint.checkpoint import Checkpoint
from tfexport.model_src.checkpoint.detect import OtherProjectError
from tfexport.model_src.checkpoint.name_matching import describe_unplaced, match_names
from tfexport.model_src.checkpoint.overrides import Source
from tfexport.model_src.checkpoint.read import examine_checkpoint
from tfexport.model_src.checkpoint.read_options import ReadOptions
from tfexport.model_src.checkpoint.rename_tables import (
    RenameTables,
    read_tables,
    rename_keys,
    write_table,
)
from tfexport.model_src.checkpoint.tried_settings import TRIED, Tried, choose

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*nested.tensor:UserWarning"),
    pytest.mark.slow,
]
LONGEST = 20
PRE = "norm_placement=pre norm_eps=1e-5 activation=relu scale_embeddings=true"
POST = "norm_placement=post norm_eps=1e-5 activation=relu scale_embeddings=true"
FINAL = "encoder_final_norm=true decoder_final_norm=true"
# What names do not show, of each style whose config has it.
PLACED = {
    "annotated": "num_heads=4",
    "gordic": f"num_heads=2 {PRE} {FINAL}",
    "jamil": f"num_heads=4 {PRE} norm_eps=1e-6 norm=annotated {FINAL}",
    "jamil_scalar_norm": f"num_heads=4 {PRE} norm_eps=1e-6 norm=annotated {FINAL}",
    "lynn": f"num_heads=2 {PRE} norm_eps=1e-6 norm=annotated {FINAL}",
    "pytorch_tutorial": "num_heads=4",
    "pytorch_pre_norm": (
        f"num_heads=2 {PRE} norm_eps=1e-6 activation=gelu scale_embeddings=false {FINAL}"
    ),
    "pytorch_stacks": f"num_heads=4 {POST} activation=silu scale_embeddings=false",
    "trevett": f"num_heads=4 {POST}",
    "ko": (
        f"num_heads=2 {POST} norm_eps=1e-12 norm=layer scale_embeddings=false positions=sinusoidal"
    ),
    "huang_scaled_embeddings": (
        f"num_heads=4 {POST} norm_eps=1e-6 encoder_final_norm=false decoder_final_norm=false"
    ),
    "toolkit": (
        f"num_heads=4 {POST} decoder_norm_placement=pre positions=sinusoidal_t2t "
        "first_position=1 decoder_final_norm=true"
    ),
    "d2l": f"num_heads=4 {POST} positions=sinusoidal",
    "notebook": f"{POST} activation=silu scale_embeddings=false positions=sinusoidal",
}
# Styles whose names are matched, but whose forward has what no setting says: factors, which are
# found with a reference, or halves of heads that are rotated, which are not.
FACTORS = ("huang", "lessons")
ODD = ("llama",)
# The others: a part of the message that refuses them.
REFUSED = {
    "labml": "source_embedding.positions.table [512, 32] is missing",
    "x_transformers": "numbered layers of an encoder and a decoder were not found",
    "x_transformers_glu_rotary": "numbered layers of an encoder and a decoder were not found",
    "torchtune": "self_attn.k_proj.weight has shape [16, 32], expected [32, 32]",
    "t5": "relative_attention_bias.weight (10, 2): its words and its shape fit no place",
    "alibi": "attn.slopes.* (2 keys) (4, 1, 1): its words and its shape fit no place",
    "packed": "(96, 32): it is packed, and names do not show how",
    "two_epsilons": "(96, 32): it is packed, and names do not show how",
    "einsum_weights": "numbered layers of an encoder and a decoder were not found (none)",
    "conv1d": "(32, 96): it is packed, and names do not show how",
    "shared_layers": "numbered layers of an encoder and a decoder were not found (none)",
    "sandwich": "a layer has 4 norms; 2 were expected",
    "normalised_keys": "q_norm.* (2 keys) (8,): its words and its shape fit no place",
    "parallel": "numbered layers of an encoder and a decoder were not found (decoder.N)",
    "captions": "numbered layers of an encoder and a decoder were not found (none)",
    "speech": "numbered layers of an encoder and a decoder were not found (none)",
}


def named(name: str) -> Style:
    return next(style for style in STYLES if style.name == name)


def saved(name: str, folder: Path) -> Path:
    torch.save(named(name).build().state_dict(), folder / "model.pt")
    return folder / "model.pt"


def own_logits(style: Style, model: nn.Module, source: Tensor, target: Tensor) -> Tensor:
    """What the style's own forward gives for (B, S) and (B, T)."""
    inputs = [source.movedim(0, style.inputs[0].axes.index("batch"))]
    return logits(style.case, model, inputs, target.movedim(0, style.target.axes.index("batch")))


def difference(style: Style, found: Checkpoint) -> float:
    """Of the log-probabilities of what was read and of the style's own forward."""
    model, largest = found.build(), 0.0
    for seed, (source, target) in enumerate(((9, 7), (1, LONGEST), (LONGEST, 1))):
        inputs = draw_inputs(style.case, 3, {"source_length": source}, seed)[0]
        tokens = draw_target(style.case, 3, target, seed)
        ids = (
            inputs.movedim(style.inputs[0].axes.index("batch"), 0),
            tokens.movedim(style.target.axes.index("batch"), 0),
        )
        wanted = own_logits(style, style.build(), *ids).log_softmax(-1)
        masks = [torch.ones_like(each) for each in ids]
        with torch.no_grad():
            made: Tensor = model(ids[0], masks[0], ids[1], masks[1]).log_softmax(-1)
        largest = max(largest, float((made - wanted).abs().max()))
    return largest


def test_every_style_is_in_one_of_the_lists() -> None:
    assert {*PLACED, *FACTORS, *ODD, *REFUSED} == {style.name for style in STYLES}
    assert len(PLACED) + len(FACTORS) + len(ODD) + len(REFUSED) == len(STYLES)
    assert len(PLACED) >= 12
    page = (REPOSITORY / "docs" / "checkpoints.md").read_text(encoding="utf-8")
    counts = f"[{len(STYLES)} styles of public code](recognition.md#styles-of-public-code)"
    assert counts in page
    assert f"{len(PLACED)} compute the same by their names" in page
    assert f"{len(FACTORS)} more with `--reference`" in page
    assert f"and {len(REFUSED)} are refused" in page


@pytest.mark.parametrize("name", few_of(tuple(PLACED), "jamil_scalar_norm", "notebook"))
def test_matched_names_with_settings_compute_the_same(name: str, tmp_path: Path) -> None:
    found = load_checkpoint(saved(name, tmp_path), settings=PLACED[name].split(), rename="auto")
    assert difference(named(name), found) <= 5e-5


@pytest.mark.parametrize("name", few_of(tuple(REFUSED), "packed", "normalised_keys"))
def test_others_are_refused_by_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(saved(name, tmp_path), rename="auto")
    assert REFUSED[name] in str(caught.value)


def test_everything_that_names_do_not_show_is_required_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_checkpoint(saved("jamil", tmp_path), rename="auto", require=("pad_id",))
    message = str(caught.value)
    for key in ("num_heads", "norm_placement", "norm_eps", "activation", "scale_embeddings",
                "encoder_final_norm", "decoder_final_norm", "norm", "pad_id"):  # fmt: skip
        assert f"{key}=…" in message


@pytest.mark.parametrize("name", few_of(("gordic", "ko", "d2l", "lessons", "toolkit"), "ko"))
def test_the_table_of_matched_names_reads_the_same_weights(name: str, tmp_path: Path) -> None:
    path, settings = saved(name, tmp_path), PLACED.get(name, f"num_heads=4 {POST}").split()
    matched = examine_checkpoint(path, settings=settings, rename="auto")
    assert len(matched.table) <= 20
    assert not matched.problems
    config = {"rename": json.loads(json.dumps(matched.table)), "ignore": "_float_tensor"}
    tied = ["tie_output=true"] if matched.checkpoint.config.tie_output else []
    kind = f"norm={matched.checkpoint.config.norm}"
    table = load_checkpoint(path, config, [*settings, kind, *tied])
    assert table.weights.keys() == matched.checkpoint.weights.keys()
    for key, weight in table.weights.items():
        assert torch.equal(weight, matched.checkpoint.weights[key]), key


def test_a_partial_table_is_ready_to_be_pasted(tmp_path: Path) -> None:
    path = saved("packed", tmp_path)
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(path, rename="auto")
    config = json.loads(str(caught.value).partition("docs/checkpoints.md).\n")[2])
    state = torch.load(path, weights_only=True)
    read = examine_checkpoint(path, config, ["num_heads=4", *PRE.split()])
    assert not read.problems
    q, k, v = state["enc.1.attn.qkv.weight"].chunk(3)
    attention = "encoder.layers.1.self_attn"
    for part, rows in (("q", q), ("k", k), ("v", v)):
        assert torch.equal(read.checkpoint.weights[f"{attention}.{part}_proj.weight"], rows)


def test_a_partial_table_that_was_completed_computes_the_same(tmp_path: Path) -> None:
    path = saved("conv1d", tmp_path)
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(path, rename="auto")
    config = json.loads(str(caught.value).partition("docs/checkpoints.md).\n")[2])
    config["rename"] |= {"ln_e.{kind}": "encoder.norm.{kind}", "ln_f.{kind}": "decoder.norm.{kind}"}
    settings = f"num_heads=4 {PRE} activation=gelu_tanh scale_embeddings=false positions=learned"
    found = load_checkpoint(path, config, settings.split())
    assert difference(named("conv1d"), found) <= 5e-5


def plain(**changes: Tensor) -> dict[str, Tensor]:
    """A state dict with common names, of one layer each."""
    state = {"src_emb.weight": torch.randn(30, 8), "tgt_emb.weight": torch.randn(31, 8)}
    for stack, attentions in (("enc", ["self_attn"]), ("dec", ["self_attn", "cross_attn"])):
        for attention in attentions:
            for part in ("q", "k", "v", "o"):
                state[f"{stack}.0.{attention}.w_{part}.weight"] = torch.randn(8, 8)
            state[f"{stack}.0.{attention}_norm.weight"] = torch.randn(8)
        state[f"{stack}.0.ff.a.weight"] = torch.randn(12, 8)
        state[f"{stack}.0.ff.b.weight"] = torch.randn(8, 12)
        state[f"{stack}.0.ff_norm.weight"] = torch.randn(8)
    return {**state, "head.weight": torch.randn(31, 8), **changes}


def test_common_names_are_matched_with_one_layer_too() -> None:
    matched = match_names(plain(), {})
    assert not matched.unplaced
    assert len({*matched.names.values()}) == len(plain())
    assert matched.names["dec.0.cross_attn_norm.weight"] == (
        "decoder.layers.0.cross_attn_residual.norm.weight"
    )


# Ways of the field to write the words of own names, in order.
VOCABULARIES = {
    "keras": [
        (r"encoder\.layers", "encoder.enc_layers"), (r"decoder\.layers", "decoder.dec_layers"),
        (r"(enc_layers\.\d+)\.self_attn\.", r"\1.mha."), (r"self_attn\.", "mha1."),
        (r"cross_attn\.", "mha2."), (r"\b([qkv])_proj", r"w\1"), ("out_proj", "dense"),
        (r"feed_forward\.up_proj", "ffn.0"), (r"feed_forward\.down_proj", "ffn.2"),
        (r"self_attn_residual\.norm", "layernorm1"),
        (r"(enc_layers\.\d+)\.feed_forward_residual\.norm", r"\1.layernorm2"),
        (r"cross_attn_residual\.norm", "layernorm2"),
        (r"feed_forward_residual\.norm", "layernorm3"),
        (r"source_embedding\.tokens", "encoder.embedding"),
        (r"target_embedding\.tokens", "decoder.embedding"), ("output_proj", "final_layer"),
    ],
    "bert": [
        (r"encoder\.layers", "encoder.layer"), (r"decoder\.layers", "decoder.layer"),
        (r"self_attn\.out_proj", "attention.output.dense"),
        (r"cross_attn\.out_proj", "crossattention.output.dense"),
        (r"self_attn\.", "attention.self."), (r"cross_attn\.", "crossattention.self."),
        ("q_proj", "query"), ("k_proj", "key"), ("v_proj", "value"),
        (r"feed_forward\.up_proj", "intermediate.dense"),
        (r"feed_forward\.down_proj", "output.dense"),
        (r"self_attn_residual\.norm", "attention.output.LayerNorm"),
        (r"cross_attn_residual\.norm", "crossattention.output.LayerNorm"),
        (r"feed_forward_residual\.norm", "output.LayerNorm"),
        (r"source_embedding\.tokens", "encoder.embeddings.word_embeddings"),
        (r"target_embedding\.tokens", "decoder.embeddings.word_embeddings"),
        ("output_proj", "cls.predictions.decoder"),
    ],
    "to_q": [
        (r"self_attn\.", "0.fn."), (r"cross_attn\.", "1.fn."),
        (r"\b([qkv])_proj", r"to_\1"), ("out_proj", "to_out.0"),
        (r"feed_forward\.up_proj", "2.fn.net.0"), (r"feed_forward\.down_proj", "2.fn.net.3"),
        (r"self_attn_residual\.norm", "0.norm"), (r"cross_attn_residual\.norm", "1.norm"),
        (r"feed_forward_residual\.norm", "2.norm"),
        (r"source_embedding\.tokens", "src_emb"), (r"target_embedding\.tokens", "tgt_emb"),
        ("output_proj", "to_logits"),
    ],
    "i and t": [
        (r"self_attn_residual\.norm", "self_attention_norm"),
        (r"cross_attn_residual\.norm", "enc_dec_attention_norm"),
        (r"feed_forward_residual\.norm", "ffn_norm"),
        (r"self_attn\.", "self_attention."), (r"cross_attn\.", "enc_dec_attention."),
        (r"\b([qkv])_proj", r"linear_\1"), ("out_proj", "output_layer"),
        (r"feed_forward\.up_proj", "ffn.layer1"), (r"feed_forward\.down_proj", "ffn.layer2"),
        (r"source_embedding\.tokens", "i_vocab_embedding"),
        (r"target_embedding\.tokens", "t_vocab_embedding"), ("output_proj", "classifier"),
    ],
    "sublayers": [
        (r"(en|de)coder\.layers", r"\1coder.\1coder_layers"),
        (r"self_attn_residual\.norm\.", "self_attention_layer.layer_normalization."),
        (r"cross_attn_residual\.norm\.", "memory_attention_layer.layer_normalization."),
        (r"feed_forward_residual\.norm\.", "pointwise_feedforward_layer.layer_normalization."),
        (r"normalization\.weight", "normalization.gamma"),
        (r"normalization\.bias", "normalization.beta"),
        (r"self_attn\.", "self_attention_layer.sublayer."),
        (r"cross_attn\.", "memory_attention_layer.sublayer."),
        ("q_proj", "query_projection"), ("k_proj", "key_projection"),
        ("v_proj", "value_projection"), ("out_proj", "final_projection"),
        (r"feed_forward\.up_proj", "pointwise_feedforward_layer.sublayer.feed_forward.0"),
        (r"feed_forward\.down_proj", "pointwise_feedforward_layer.sublayer.feed_forward.3"),
        (r"source_embedding\.tokens", "encoder.embedding.token_embedding"),
        (r"target_embedding\.tokens", "decoder.embedding.token_embedding"),
        ("output_proj", "decoder.generator"),
    ],
    "underscores": [
        (r"(en|de)coder\.layers", r"_\1coder._layers"),
        ("self_attn_residual", "_layer_norm_1"), ("cross_attn_residual", "_layer_norm_2"),
        (r"(_encoder\._layers\.\d+)\.feed_forward_residual", r"\1._layer_norm_2"),
        ("feed_forward_residual", "_layer_norm_3"), (r"\.norm\.", "."),
        (r"self_attn\.", "_self_attn._"), (r"cross_attn\.", "_memory_attn._"),
        (r"_([qkv])_proj", r"_w_\1"), ("_out_proj", "_w_o"),
        (r"feed_forward\.up_proj", "_ffn._w_1"), (r"feed_forward\.down_proj", "_ffn._w_2"),
        (r"source_embedding\.tokens", "_word_emb_src"),
        (r"target_embedding\.tokens", "_word_emb_tgt"), ("output_proj", "_output_projection"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", VOCABULARIES)
@pytest.mark.parametrize("layers", [1, 2])
def test_usual_words_are_known(name: str, layers: int) -> None:
    config = TransformerConfig(
        8, 2, layers, layers, 12, 9, 11, encoder_final_norm=False, decoder_final_norm=False,
        positions="none",
    )  # fmt: skip
    state, wanted = {}, {}
    for own, tensor in build_transformer(config).state_dict().items():
        key = own
        for ours, theirs in VOCABULARIES[name]:
            key = re.sub(ours, theirs, key)
        state[key], wanted[key] = tensor, own
    assert len(state) == len(build_transformer(config).state_dict())
    matched = match_names(state, {})
    assert matched.unplaced == {}
    assert matched.names == wanted
    assert match_names(dict(sorted(state.items())), {}).names == wanted


@pytest.mark.parametrize(
    ("changes", "key", "why"),
    [
        ({"extra": torch.zeros(3)}, "extra", "fit no place"),
        ({"other_head.weight": torch.zeros(31, 8)}, "head.weight", "several may be the output"),
        ({"src_emb2.weight": torch.zeros(30, 8)}, "src_emb.weight", "of 3 tables of tokens"),
        ({"enc.0.ff.c.weight": torch.zeros(12, 8)}, "enc.0.ff.a.weight", "3 matrices are in no"),
        ({"enc.0.norm9.weight": torch.zeros(8)}, "enc.0.ff_norm.weight", "a layer has 3 norms"),
        ({"rope.inv_freq": torch.zeros(4)}, "rope.inv_freq", "fit no place"),
        (
            {"src_emb.ln.weight": torch.zeros(8), "src_emb_norm.weight": torch.zeros(8)},
            "src_emb_norm.weight",
            "would both be source_embedding.norm.weight",
        ),
    ],
)
def test_what_has_no_certain_place_has_none(changes: dict[str, Tensor], key: str, why: str) -> None:
    matched = match_names(plain(**changes), {})
    assert why in matched.unplaced[key]
    assert key not in matched.names


def test_masks_are_ignored_and_values_like_masks_are_not() -> None:
    mask = torch.ones(9, 9).tril()
    matched = match_names(plain(**{"mask": mask, "dec.0.causal": mask[None, None] == 0}), {})
    assert sorted(matched.ignored) == ["dec.0.causal", "mask"]
    mask[3, 1] = 0.5
    assert "mask" in match_names(plain(mask=mask), {}).unplaced


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bool, torch.float16])
def test_masks_of_any_type_are_ignored(dtype: torch.dtype, tmp_path: Path) -> None:
    mask = torch.ones(9, 9).tril().to(dtype)
    torch.save(plain(mask=mask), tmp_path / "model.pt")
    settings = f"num_heads=2 {PRE} norm=rms positions=none relative_positions=none".split()
    found = load_checkpoint(tmp_path / "model.pt", settings=settings, rename="auto")
    assert found.key_report["mask"] == ()
    torch.save(plain(mask=mask.to(torch.complex64)), tmp_path / "model.pt")
    with pytest.raises(CheckpointError, match=r"mask \(9, 9\): its words"):
        load_checkpoint(tmp_path / "model.pt", settings=settings, rename="auto")


def test_matrices_stored_the_other_way_round_are_not_guessed() -> None:
    state = plain()
    state["enc.0.ff.a.weight"] = torch.randn(8, 12)
    state["enc.0.ff.b.weight"] = torch.randn(12, 8)
    state |= {"enc.0.ff.a.bias": torch.randn(12), "enc.0.ff.b.bias": torch.randn(8)}
    matched = match_names(state, {})
    assert matched.names["enc.0.ff.a.weight"] == "encoder.layers.0.feed_forward.up_proj.weight.T"
    assert "does not show it" in matched.unplaced["enc.0.self_attn.w_q.weight"]
    assert matched.likely["enc.0.self_attn.w_q.weight"].endswith("q_proj.weight.T")


def test_norms_numbered_in_another_order_than_the_sublayers_are_refused() -> None:
    state = plain()
    for number, name in enumerate(("self_attn", "ff", "cross_attn"), 1):
        state[f"dec.0.norm{number}.weight"] = state.pop(f"dec.0.{name}_norm.weight")
    for part in ("q", "k", "v", "o"):  # after the feed-forward
        state[f"dec.0.cross_attn.w_{part}.weight"] = state.pop(f"dec.0.cross_attn.w_{part}.weight")
    matched = match_names(state, {})
    assert "which sublayer" in matched.unplaced["dec.0.norm2.weight"]


@pytest.mark.parametrize(
    ("renamed", "refused"),
    [
        ({"self_attn": "mmha", "cross_attn": "mha"}, "dec.0.mha.w_q.weight"),
        ({"ff.a": "ff.expand", "ff.b": "ff.contract"}, "enc.0.ff.expand.weight"),
        ({"self_attn_norm": "ln_1", "ff_norm": "ln_2", "cross_attn_norm": "ln_3"},
         "dec.0.ln_2.weight"),
        ({"self_attn_norm": "norm1.ln", "enc.0.ff_norm": "enc.0.norm2.ln",
          "cross_attn_norm": "norm2.ln", "dec.0.ff_norm": "dec.0.norm3.ln"}, None),
    ],
)  # fmt: skip
def test_the_order_of_sorted_keys_shows_nothing(
    renamed: dict[str, str], refused: str | None
) -> None:
    state = {}
    for key, tensor in plain().items():
        name = key
        for ours, theirs in renamed.items():
            name = name.replace(ours, theirs)
        state[name] = torch.zeros(8, 8) if "expand" in name or "contract" in name else tensor
    matched = match_names(dict(sorted(state.items())), {})
    if refused is not None:
        assert "the keys are sorted" in matched.unplaced[refused]
        assert refused not in matched.names
        return
    assert not matched.unplaced
    for number, sublayer in enumerate(("self_attn", "cross_attn", "feed_forward"), 1):
        name = f"decoder.layers.0.{sublayer}_residual.norm.weight"
        assert matched.names[f"dec.0.norm{number}.ln.weight"] == name


def test_an_output_embedding_without_an_output_table_may_be_either() -> None:
    state = plain()
    del state["head.weight"]
    state["output_embedding.weight"] = state.pop("tgt_emb.weight")
    why = match_names(state, {}).unplaced["output_embedding.weight"]
    assert "it may be the output table" in why
    matched = match_names(state, {"tie_output": True})
    assert matched.names["output_embedding.weight"] == "target_embedding.tokens.weight"


def test_a_file_that_is_not_read_is_not_converted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError

    torch.save(plain(extra=torch.zeros(3)), tmp_path / "model.pt")
    monkeypatch.setattr(read, "upcast", refuse)
    with pytest.raises(CheckpointError, match="no known layout"):
        load_checkpoint(tmp_path / "model.pt")
    names = [f"a.{part}_proj" for part in "qkvo"] + ["m.up", "m.down"]
    decoder = {f"model.layers.{i}.{it}.weight": torch.zeros(8, 8) for i in (0, 1) for it in names}
    torch.save(decoder, tmp_path / "model.pt")
    monkeypatch.setattr(read, "match_names", refuse)
    with pytest.raises(OtherProjectError, match="a decoder-only language model"):
        load_checkpoint(tmp_path / "model.pt")


def with_leaves(leaf: str, ups: str, downs: str) -> dict[str, Tensor]:
    """A state dict whose layers' matrices are (in, out), and called in another way."""
    state = {}
    for key, tensor in plain().items():
        name = key.replace("ff.a", ups).replace("ff.b", downs)
        inside = name[3:5] == ".0" and tensor.dim() == 2
        state[name.replace(".weight", leaf) if inside else name] = tensor.T if inside else tensor
    return state


def test_kernels_are_stored_as_in_and_out() -> None:
    matched = match_names(with_leaves(".kernel", "ff.a", "ff.b"), {})
    assert not matched.unplaced
    assert matched.names["enc.0.self_attn.w_q.kernel"] == (
        "encoder.layers.0.self_attn.q_proj.weight.T"
    )
    assert matched.names["dec.0.ff.a.kernel"] == "decoder.layers.0.feed_forward.up_proj.weight.T"


def test_parameters_of_an_unknown_order_are_refused() -> None:
    state = with_leaves("", "ff.expand", "ff.contract")
    matched = match_names(state, {})
    for key in ("enc.0.self_attn.w_q", "dec.0.ff.expand", "dec.0.ff.contract"):
        assert "nothing shows whether it is (out, in)" in matched.unplaced[key]
    state = with_leaves("", "ff.w_in", "ff.w_out")
    assert "enc.0.self_attn.w_q" in match_names(state, {}).unplaced
    for stack in ("enc", "dec"):
        for name in ("w_in", "w_out"):
            state[f"{stack}.0.ff.{name}"] = state[f"{stack}.0.ff.{name}"].T
    assert not match_names(state, {}).unplaced  # (out, in), as the feed-forward shows


def with_norms(encoder: tuple[str, ...], decoder: tuple[str, ...]) -> dict[str, Tensor]:
    """A state dict with norms of these names, for each sublayer in order."""
    state = plain()
    for stack, names in (("enc", encoder), ("dec", decoder)):
        sublayers = ("self_attn", "ff") if stack == "enc" else ("self_attn", "cross_attn", "ff")
        for sublayer, name in zip(sublayers, names, strict=True):
            state[f"{stack}.0.{name}.weight"] = state.pop(f"{stack}.0.{sublayer}_norm.weight")
    return state


AFTER_EACH = (
    ("post_attention_layernorm", "post_ffn_layernorm"),
    ("post_self_attention_norm", "post_cross_attention_norm", "post_ffn_norm"),
)
BEFORE_EACH = (
    ("input_layernorm", "post_attention_layernorm"),
    ("input_layernorm", "post_self_attention_norm", "post_cross_attention_norm"),
)


@pytest.mark.parametrize(
    ("names", "placement", "wrong"),
    [(AFTER_EACH, "post", "pre"), (BEFORE_EACH, "pre", "post"), (AFTER_EACH, "res_post", None)],
)
def test_norms_after_a_sublayer_are_placed_by_the_stated_placement(
    names: tuple[tuple[str, ...], tuple[str, ...]], placement: str, wrong: str | None
) -> None:
    state = with_norms(*names)
    matched = match_names(state, {"norm_placement": placement})
    for stack, its in zip(("encoder", "decoder"), names, strict=True):
        sublayers = ["self_attn", "cross_attn", "feed_forward"][:: 2 if stack == "encoder" else 1]
        for name, sublayer in zip(its, sublayers, strict=True):
            place = f"{stack}.layers.0.{sublayer}_residual.norm.weight"
            assert matched.names[f"{stack[:3]}.0.{name}.weight"] == place
    refused = match_names(state, {} if wrong is None else {"norm_placement": wrong})
    for stack, its in zip(("enc", "dec"), names, strict=True):
        assert all("norm_placement" in refused.unplaced[f"{stack}.0.{it}.weight"] for it in its)


def test_the_last_norm_has_to_fit_by_words_too() -> None:
    state = with_norms(("norm_a", "ff_norm"), ("self_attn_norm", "attn_norm", "ff_norm"))
    matched = match_names(state, {})
    assert matched.names["enc.0.norm_a.weight"].startswith("encoder.layers.0.self_attn_residual")
    assert "words of the norms" in matched.unplaced["dec.0.attn_norm.weight"]


def reference_of(name: str) -> Any:
    style = named(name)
    model = style.build()
    return lambda source, target: own_logits(style, model, source, target)


def tried(name: str, folder: Path, *settings: str) -> Checkpoint:
    style = named(name)
    ids = [f"pad_id={style.pad_id}", f"bos_id={style.bos_id}", f"eos_id={style.eos_id}"]
    read = ReadOptions(settings=(*ids, *settings), rename="auto", reference=reference_of(name))
    return read.read(saved(name, folder), ("eos_id",))


@pytest.mark.parametrize("name", [*FACTORS, "trevett", "jamil", "d2l", "notebook"])
@pytest.mark.exhaustive  # the next test tries some of them
def test_settings_are_tried_against_the_own_forward(name: str, tmp_path: Path) -> None:
    found = tried(name, tmp_path)
    assert found.origins["norm_placement"] == TRIED
    assert difference(named(name), found) <= 5e-5


def test_factors_of_queries_and_logits_are_found(tmp_path: Path) -> None:
    known = ["norm_placement=post", "activation=relu", "scale_embeddings=false", "num_heads=4"]
    for name, tied in (("huang", False), ("lessons", None)):
        found = tried(name, tmp_path, *known)
        assert {key for key, origin in found.origins.items() if origin == TRIED} >= {"norm_eps"}
        assert difference(named(name), found) <= 5e-5
        assert tied is None or found.config.tie_output is tied


@pytest.mark.parametrize("name", ODD)
def test_no_settings_that_differ_from_the_own_forward_are_taken(name: str, tmp_path: Path) -> None:
    known = f"num_heads=4 norm_placement=pre scale_embeddings=false norm=rms positions=none {FINAL}"
    with pytest.raises(ConfigError, match=r"relative_positions \(none, buckets, "):
        load_checkpoint(saved(name, tmp_path), settings=known.split(), rename="auto")
    with pytest.raises(ConfigError, match="agree with your forward; the nearest differ by") as told:
        tried(name, tmp_path, *known.split())
    assert "--" not in str(told.value)
    assert re.search(r"norm_eps=\S+, activation=\w+, relative_positions=\w+\)", str(told.value))


def test_a_reference_with_another_result_is_named(tmp_path: Path) -> None:
    path = saved("trevett", tmp_path)
    settings = ["pad_id=1", "bos_id=2", "eos_id=3"]
    for reference, message in (
        (lambda source, target: source, r"returned \(3, 7\), expected \(3, 6, 54\)"),
        (lambda source, target: 1 / 0, "raised ZeroDivisionError"),
    ):
        read = ReadOptions(settings=settings, rename="auto", reference=reference)
        with pytest.raises(ConfigError, match=message):
            read.read(path)


def test_settings_that_agree_but_differ_are_refused(tmp_path: Path) -> None:
    """A forward half way between two activations agrees with both as well as with neither."""
    one = Tried({"activation": "relu"}, 1.0, 1.0, 4e-5, torch.zeros(1, 1, 3))
    other = Tried({"activation": "gelu"}, 1.0, 1.0, 5e-5, torch.full((1, 1, 3), 6e-5))
    with pytest.raises(ConfigError, match="several values of activation agree with your forward"):
        choose("model.pt", [one, other], ["activation"])
    equal = Tried({"activation": "gelu"}, 1.0, 1.0, 5e-5, torch.full((1, 1, 3), 1e-6))
    assert choose("model.pt", [one, equal], ["activation"]) is one


WORDS = (
    "enc", "dec", "0", "1", "q", "k", "w_q", "attn", "out", "qkv", "c_attn", "norm", "ff", "fc1",
    "weight", "bias", "emb", "pos", "src", "gate", "in_proj", "\u00b2", "", "heads", "{x}",
)  # fmt: skip


@pytest.mark.parametrize("seed", few_of(tuple(range(40)), 0, 1))
def test_drawn_keys_have_one_place_or_none(seed: int) -> None:
    random = Random(seed)
    for _ in range(20):
        state = plain()
        for key in random.sample([*state], random.randrange(9)):
            tensor = state.pop(key)
            parts = key.split(".")
            parts[random.randrange(len(parts))] = random.choice(WORDS)
            shape = [random.choice((0, 1, 2, 3, 8, 12, 16, 24)) for _ in range(random.randrange(4))]
            drawn = torch.zeros(shape, dtype=random.choice((torch.float32, torch.bool)))
            state[".".join(parts)] = random.choice((tensor, drawn))
        matched = match_names(state, {})
        places = (*matched.names, *matched.ignored, *matched.unplaced)
        assert sorted(places) == sorted(state)
        assert len({*matched.names.values()}) == len(matched.names)
        describe_unplaced(matched, state)
        table = write_table(matched.names)
        tables = read_tables([Source("config", {"rename": table})]) if table else RenameTables()
        names = rename_keys(matched.names, tables)
        assert names == matched.names


def test_thousands_of_hostile_keys_are_matched_quickly() -> None:
    state = {f"{'a.1.' * 100}{n}.q{n % 3}.0": torch.zeros(8, 8) for n in range(8000)}
    start = time.monotonic()
    assert match_names(state, {}).names == {}
    assert time.monotonic() - start < 60  # a generous bound on what must not explode
