"""Attention of modules' bundles, and that of the user's own layers.

Axes: L layers, H heads, T target, S source.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.conftest import Once
from tfexport.bundle import open_bundle
from tfexport.errors import ConfigError
from tfexport.export import Input, export, quantize, verify
from tfexport.export.artifacts import module
from tfexport.export.incremental import cross_attention
from tfexport.export.incremental.cross_attention import (
    CrossAttention,
    attention_weights,
    find_cross_attention,
)
from tfexport.export.modules.softmaxes import nearest_weights
from tfexport.markup import Markup, translate_markup
from tfexport.runtime import Translator

WORDS = ["<pad>", "<s>", "</s>", "<unk>", *(f"w{number}" for number in range(4, 23))]
INPUTS = [Input("input_ids", "int64", ("batch", "source_length"))]
FACTS: Any = {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3, "max_length": 12}
ROWS = ([5, 6, 7, 8], [9, 3, 4, 4, 7, 11, 12])


class Words(nn.Module):
    """A decoder of nn.Transformer over states of a recurrent encoder, which is not recognised."""

    def __init__(self, wave: bool) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.source, self.target = nn.Embedding(23, 16), nn.Embedding(23, 16)
        self.encoder = nn.GRU(16, 16, batch_first=True)
        layer = nn.TransformerDecoderLayer(16, 2, 24, 0.0, batch_first=True)
        self.decoder, self.head = nn.TransformerDecoder(layer, 2), nn.Linear(16, 23)
        self.positions = nn.Parameter(torch.randn(12, 16))
        self.wave = wave  # behind the decoder, which is not recognised then
        with torch.no_grad():
            for parameter in self.decoder.parameters():
                parameter.mul_(2.5)

    def forward(self, input_ids: Tensor, target: Tensor) -> Tensor:
        length = target.size(1)
        memory, _ = self.encoder(self.source(input_ids))
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        x = self.decoder(self.target(target) + self.positions[:length], memory, tgt_mask=mask)
        logits: Tensor = self.head(torch.sin(x) if self.wave else x)
        return logits


@torch.no_grad()
def weights_of(model: Words, row: Sequence[int], tokens: Sequence[int]) -> Any:
    """The weights (L, H, T, S) that the user's layers give where they are asked for them."""
    found, hooks = [], []
    asked = {"need_weights": True, "average_attn_weights": False}
    for layer in model.decoder.layers:
        attention: Any = layer.multihead_attn
        hooks += [
            attention.register_forward_pre_hook(
                lambda _, args, kwargs: (args, {**kwargs, **asked}), with_kwargs=True
            ),
            attention.register_forward_hook(lambda _, __, result: found.append(result[1][0])),
        ]
    model.eval()(torch.tensor([row]), torch.tensor([tokens]))
    for hook in hooks:
        hook.remove()
    return torch.stack(found).numpy()


def bundle_of(once: Once, wave: bool) -> Path:
    def make(path: Path) -> None:
        words = path.parent / "words.txt"
        words.write_text("\n".join(WORDS) + "\n", encoding="utf-8")
        export(Words(wave), path, inputs=INPUTS, tokenizer=words, verify="quick", **FACTS)

    return once(f"attention-{wave}.bundle", make)


@pytest.mark.usefixtures("few_shapes")
@pytest.mark.parametrize(
    ("wave", "engine"), [(True, "onnxruntime"), (False, "onnxruntime"), (False, "native")]
)
def test_attention_is_that_of_the_users_layers(once: Once, wave: bool, engine: Any) -> None:
    if engine == "native":
        pytest.importorskip("tfexport_native", reason="tfexport-native is not installed")
    bundle, model = bundle_of(once, wave), Words(wave)
    manifest = open_bundle(bundle)
    assert manifest.attention_shape == (2, 2)
    assert (manifest.transformer is None) == wave
    with Translator(bundle, engine=engine) as translator:

        def generate(rows: Sequence[Sequence[int]], **options: Any) -> Any:
            return translator.generate(rows, max_length=9, return_attention=True, **options)

        for row, result in zip(ROWS, generate(ROWS), strict=True):
            (made,) = result.hypotheses
            wanted = weights_of(model, row, [1, *made.tokens[:-1]])
            assert made.attention.shape == (len(made.tokens), len(row))
            assert made.attention == pytest.approx(wanted[-1].mean(0), abs=1e-4)
            one = generate([row], attention_layer=0, attention_head=1)[0].hypotheses[0]
            assert one.attention == pytest.approx(wanted[0, 1], abs=1e-4)
            (alone,) = generate([row])[0].hypotheses
            assert (alone.attention == made.attention).all()
        searches: list[dict[str, Any]] = [
            {"beam_size": 3, "num_hypotheses": 2}, {"return_end_token": True},
            {"num_hypotheses": 2, "return_alternatives": True}, {"target_prefix": [[7, 5]]},
        ]  # fmt: skip
        for options in searches:
            for made in generate([ROWS[0]], **options)[0].hypotheses:
                wanted = weights_of(model, ROWS[0], [1, *made.tokens[:-1]])
                assert made.attention == pytest.approx(wanted[-1].mean(0), abs=1e-4)
        with pytest.raises(ConfigError, match="attention_layer 2 is not in a decoder of 2 layers"):
            generate([ROWS[0]], attention_layer=2)
        with pytest.raises(ConfigError, match="coverage_penalty needs attention at every step"):
            translator.generate([ROWS[0]], coverage_penalty=0.2, beam_size=2)


def test_tags_are_placed_by_the_attention_of_a_module(once: Once) -> None:
    with Translator(bundle_of(once, wave=True)) as translator:
        (text,) = translate_markup(
            translator, ["<p>w5 <b>w6</b> w7 w8.</p>"], Markup("html"), max_length=9
        )
        (plain,) = translator.translate(["w5 w6 w7 w8."], max_length=9)
    assert text.count("<b>") == text.count("</b>") == 1
    assert text.replace("<b>", "").replace("</b>", "") == f"<p>{plain.text}</p>"


def sharper(query: Tensor, key: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    return attention_weights(query, key, bias, 2 * scale)


def broken(query: Tensor, key: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    raise RuntimeError("planted")


@pytest.mark.usefixtures("few_shapes", "no_beam_graph")
@pytest.mark.parametrize(
    ("fault", "is_found", "reason"),
    [
        (sharper, True, "ParityError: .*: alignment: "),
        (broken, True, "ExportError: alignment.onnx: .*planted"),
        (sharper, False, "ExportError: its weights are not those of a softmax"),
        (broken, False, "RuntimeError: planted"),
    ],
)
def test_a_fault_of_attention_leaves_it_out(
    fault: Any, is_found: bool, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(program: Any, fused: bool) -> CrossAttention | None:
        if not is_found:
            monkeypatch.setattr(cross_attention, "attention_weights", fault)
        attention = find_cross_attention(program, fused)
        assert attention is not None
        for node in attention.module.graph.nodes:
            if node.target is attention_weights:
                node.target = fault
        attention.module.recompile()
        return attention

    monkeypatch.setattr(module, "find_cross_attention", find)
    bundle, model = tmp_path / "a.bundle", Words(wave=True)
    result = export(model, bundle, inputs=INPUTS, verify="quick", recognise=False, **FACTS)
    (note,) = result.notes
    assert re.match(f"it gives no attention: {reason}", note)
    assert "alignment" not in open_bundle(bundle).graphs
    assert verify(bundle, model, inputs=INPUTS, level="quick").passed
    with (
        Translator(bundle) as translator,
        pytest.raises(ConfigError, match="attention is not in this bundle"),
    ):
        translator.generate([ROWS[0]], return_attention=True)


def test_a_bundle_is_verified_and_quantised_with_its_attention(tmp_path: Path, once: Once) -> None:
    bundle = bundle_of(once, wave=True)
    report = verify(bundle, Words(wave=True), inputs=INPUTS, level="quick")
    assert report.passed
    assert "alignment" in {found.stage for found in report.comparisons}
    quantize(bundle, tmp_path / "q.bundle", "int8")
    with Translator(tmp_path / "q.bundle") as translator:
        (result,) = translator.generate([ROWS[0]], return_attention=True)
    attention = result.hypotheses[0].attention
    assert attention is not None
    assert attention.sum(1) == pytest.approx(1, abs=1e-5)


class NoAttention(Words):
    """The same without attention: the mean of the memory is added."""

    def forward(self, input_ids: Tensor, target: Tensor) -> Tensor:
        memory, _ = self.encoder(self.source(input_ids))
        x = self.target(target).cumsum(1) + memory.mean(1, keepdim=True)
        logits: Tensor = self.head(torch.sin(x))
        return logits


@pytest.mark.usefixtures("few_shapes", "no_beam_graph")
def test_a_module_without_attention_gives_none(tmp_path: Path) -> None:
    bundle = tmp_path / "a.bundle"
    export(NoAttention(wave=True), bundle, inputs=INPUTS, verify="quick", **FACTS)
    assert "alignment" not in open_bundle(bundle).graphs
    with (
        Translator(bundle) as translator,
        pytest.raises(ConfigError, match="attention is not in this bundle"),
    ):
        translator.generate([ROWS[0]], return_attention=True)


@pytest.mark.no_model
def test_nearest_weights_keep_the_order_of_layers() -> None:
    first, second = torch.rand(1, 2, 3, 4), torch.rand(2, 3, 4)
    both = torch.cat([first[0], second])
    results = [torch.rand(1, 2, 3, 3), first, second]
    assert (nearest_weights(results, both, 2) == both).all()
    turned = torch.cat([second, first[0]])
    assert not np.allclose(nearest_weights(results, turned, 2), turned)
    assert nearest_weights([first], both, 2).isinf().any()
