"""The references against the project's own modules, without an export between them."""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support import tutorial
from tests.support.originals import annotated
from tfexport.export.reference import build_reference, find_original
from tfexport.export.reference.formulas import sinusoids
from tfexport.model_src import TransformerConfig, build_transformer, load_checkpoint
from tfexport.model_src.checkpoint.layout import Layout
from tfexport.model_src.checkpoint.layouts import LAYOUTS
from tfexport.model_src.checkpoint.read_options import checkpoint_of
from tfexport.model_src.embedding import sinusoidal_table

EMBEDDINGS = {
    "source": "src_tok_emb.embedding.weight",
    "target": "tgt_tok_emb.embedding.weight",
    "output": "generator.weight",
}


def logits_of(folder: Path, state: dict[str, Tensor], **config: Any) -> tuple[str, Tensor, Tensor]:
    """The name of the reference, its logits and those of the project's modules."""
    torch.save(state, folder / "model.pt")
    checkpoint = load_checkpoint(folder, {"num_heads": 4, **config})
    model = checkpoint.build()
    reference = build_reference(checkpoint, model)
    ids, prefix = torch.randint(0, 17, (3, 6)), torch.randint(0, 17, (3, 5))
    mask = torch.tensor([[1] * 6, [1] * 4 + [0] * 2, [1] + [0] * 5])
    theirs = reference.decode(reference.encode(ids, mask), mask, prefix)
    return reference.title, theirs, model(ids, mask, prefix, torch.ones_like(prefix))


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_has_an_original_or_a_reason_why_not(name: str) -> None:
    layout = LAYOUTS[name]
    original = find_original(layout)
    if layout.generation is not None:
        return  # the class of transformers is the original of its folders
    assert (original is None) == (name == "native")
    default = Layout("other", "another", layout.table).no_reference
    assert (layout.no_reference == default) == (original is not None)


def test_reference_says_why_it_is_no_original() -> None:
    layers: dict[str, Any] = {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_ff": 12}
    sizes: dict[str, Any] = {"d_model": 8, "num_heads": 2, "max_positions": 8}
    config = TransformerConfig(**sizes, **layers, source_vocab_size=17, target_vocab_size=17)
    native = checkpoint_of(build_transformer(config))
    assert native.layout == "native"
    assert build_reference(native, native.build()).no_original == LAYOUTS["native"].no_reference
    stock = checkpoint_of(tutorial.make())
    assert build_reference(stock, stock.build()).no_original is None
    other = dataclasses.replace(
        stock, config=dataclasses.replace(stock.config, positions_every_layer=True)
    )
    reason = build_reference(other, stock.build()).no_original
    assert reason == "that of the layout 'nn-transformer' cannot have the settings of this config"


@pytest.mark.parametrize("kept", ["source", "target", "output"])
def test_stock_reference_finds_one_table_under_any_of_its_names(tmp_path: Path, kept: str) -> None:
    state = dict(tutorial.make(target_size=17).state_dict())
    for name, key in EMBEDDINGS.items():
        if name != kept:
            del state[key]
    ties = {"tie_embeddings": True, "tie_output": True}
    title, theirs, ours = logits_of(tmp_path, state, **ties)
    assert title == "torch.nn.Transformer"
    torch.testing.assert_close(theirs, ours, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kept", ["src", "tgt"])
def test_annotated_reference_finds_one_table_under_any_of_its_names(
    tmp_path: Path, kept: str
) -> None:
    state = dict(annotated.Annotated(target=17).state_dict())
    other = {"src": "tgt", "tgt": "src"}[kept]
    del state[f"{other}_embed.0.lut.weight"], state["generator.proj.weight"]
    ties = {"tie_embeddings": True, "tie_output": True}
    title, theirs, ours = logits_of(tmp_path, state, **ties)
    assert "Annotated" in title
    torch.testing.assert_close(theirs, ours, atol=1e-5, rtol=1e-5)


def test_separate_projections_with_biases_are_those_of_packed_ones(tmp_path: Path) -> None:
    state = dict(tutorial.make().state_dict())
    for key in list(state):
        if "in_proj_bias" in key:
            state[key] = torch.randn_like(state[key])  # torch draws zeros
    torch.manual_seed(0)
    _, expected, _ = logits_of(tmp_path, state)
    for key in [key for key in state if "in_proj_" in key]:
        for part, third in zip("qkv", state.pop(key).chunk(3), strict=True):
            state[key.replace("in_proj_", f"{part}_proj_")] = third.clone()
    torch.manual_seed(0)
    title, theirs, ours = logits_of(tmp_path, state)
    assert title == "torch.nn.Transformer"
    torch.testing.assert_close(theirs, expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(theirs, ours, atol=1e-5, rtol=1e-5)


def test_stock_reference_has_a_position_table_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = dict(tutorial.make().state_dict())
    del state["positional_encoding.pos_embedding"]
    for name, module in list(sys.modules.items()):
        if name.startswith("tfexport.") and hasattr(module, "sinusoidal_table"):
            wrong = lambda length, width: sinusoidal_table(length, width) + 1  # noqa: E731
            monkeypatch.setattr(module, "sinusoidal_table", wrong)
    _, theirs, ours = logits_of(tmp_path, state, max_positions=32)
    assert (theirs - ours).abs().max() > 0.01


@pytest.mark.parametrize("d_model", [6, 7])
def test_sinusoids_are_those_of_the_modules_far_out_too(d_model: int) -> None:
    table = sinusoidal_table(20_000, d_model)
    torch.testing.assert_close(table, sinusoids(20_000, d_model), atol=1e-7, rtol=0)
