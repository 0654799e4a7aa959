"""Decoders that are recognised alone, and compared with the whole forward.

Axes: B batch, S memory, T target, E width of the decoder, W width of the memory, V vocabulary.
"""

# mypy: no-warn-return-any

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.export.incremental.own_case import draw_inputs, draw_target, logits
from tests.export.recognition.styles import STYLES, Style, drawn_mutations
from tests.export.recognition.styles.other_kin import FRAMES, CaptionDecoder
from tests.export.recognition.styles.style import DECODER, SOURCE, trained
from tests.export.recognition.test_recognition import (
    LONGEST,
    arguments,
    bundle_of,
    ids_of,
    named,
)
from tests.support.combinations import few_of
from tests.support.manifests import rewrite
from tfexport.bundle import open_bundle
from tfexport.errors import BundleError, InputError
from tfexport.export import Input, verify
from tfexport.export.artifacts import recognised_decoder as artifacts
from tfexport.export.artifacts.module_source import (
    ModuleCall,
    ModuleFacts,
    read_call,
    read_module,
)
from tfexport.export.modules.contract import ModuleError
from tfexport.export.recognition.dataflow import NotRecognisedError
from tfexport.export.recognition.decoder import RecognisedDecoder, recognise_decoder
from tfexport.runtime import Translator
from tfexport.runtime.model.native_engine import why_not_native
from tfexport.typing import silent

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*nested.tensor:UserWarning"),
    pytest.mark.slow,
]
DECODERS = tuple(style.name for style in STYLES if style.expected == DECODER)


def call_of(style: Style) -> ModuleCall:
    facts, options = ModuleFacts(ids_of(style), LONGEST), arguments(style)
    return read_call(style.build(), style.inputs, facts, options, silent)  # type: ignore[arg-type]


def recognise(style: Style) -> RecognisedDecoder:
    return recognise_decoder(call_of(style).program, ids_of(style), LONGEST)


def difference(style: Style, found: RecognisedDecoder) -> float:
    """Of the log-probabilities of the decoder over its states and of the style's own forward."""
    model, largest = found.model, 0.0
    for seed, (source, target) in enumerate(((9, 7), (1, LONGEST), (60, 3))):
        inputs = draw_inputs(style.case, 3, {"source_length": source}, seed)
        if source > 1:
            pad_row(style, inputs[0])
        tokens = draw_target(style.case, 3, target, seed)
        wanted = logits(style.case, style.build(), inputs, tokens).log_softmax(-1)
        batch_first = [
            each.movedim(given.axes.index("batch"), 0)
            for each, given in zip(inputs, style.inputs, strict=True)
        ]
        ids = tokens.movedim(style.target.axes.index("batch"), 0)
        with torch.no_grad():
            states, kept = found.encode(batch_first)
            made = model(states, kept, ids, torch.ones_like(ids)).log_softmax(-1)
        largest = max(largest, float((made - wanted).abs().max()))
    return largest


def pad_row(style: Style, given: Tensor) -> None:
    """Put padding in the middle and at the end of the first row of ids or frames."""
    rows = given.movedim(style.inputs[0].axes.index("batch"), 0)
    if rows.dim() < 4 and (rows.is_floating_point() or style.pads_source):
        rows[0, -3:] = rows[0, 2] = style.pad_id


# Decoders over memories of many forms.


class Over(nn.Module):
    """A decoder over frames that pass a layer."""

    def __init__(self, words: int = 54) -> None:
        super().__init__()
        self.listen, self.decoder = nn.Linear(10, 32), CaptionDecoder(words)

    def memory(self, frames: Tensor) -> Tensor:
        return self.listen(frames).tanh()

    def forward(self, frames: Tensor, ids: Tensor) -> Tensor:
        made: Tensor = self.decoder(ids, self.memory(frames))
        return made


class Narrow(Over):
    """The memory has fewer values than the decoder: keys and values are projected from 10."""

    def __init__(self) -> None:
        super().__init__()
        for layer in self.decoder.cross:
            layer.k_proj, layer.v_proj = nn.Linear(10, 32), nn.Linear(10, 32)

    def memory(self, frames: Tensor) -> Tensor:
        return frames.tanh()


class Features(Narrow):
    """The frames themselves are the memory."""

    def memory(self, frames: Tensor) -> Tensor:
        return frames


class OnlyLayer(nn.Module):
    """One layer of torch, batch second, whose keys and values are one projection; log-softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.listen, self.embed = nn.Linear(10, 16), nn.Embedding(40, 16)
        layer = nn.TransformerDecoderLayer(16, 2, 20, norm_first=True)
        self.stack, self.head = nn.TransformerDecoder(layer, 1), nn.Linear(16, 40)

    def forward(self, frames: Tensor, ids: Tensor) -> Tensor:
        memory = self.listen(frames.transpose(0, 1)).relu()
        mask = nn.Transformer.generate_square_subsequent_mask(ids.size(1))
        made: Tensor = self.head(self.stack(self.embed(ids.t()), memory, tgt_mask=mask))
        return made.transpose(0, 1).log_softmax(-1)


class SplitProduct(Over):
    """One layer, whose keys and values are the parts of one product."""

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Linear(32, 64)

    def forward(self, frames: Tensor, ids: Tensor) -> Tensor:
        decoder: Any = self.decoder
        cross = decoder.cross[0]
        x = decoder.embed(ids) + decoder.places(torch.arange(ids.size(1)))
        x = decoder.norms[0](x + decoder.own[0](x, x, is_causal=True))
        keys, values = self.both(self.memory(frames)).chunk(2, dim=-1)
        q, k, v = (y.unflatten(2, (4, -1)).transpose(1, 2) for y in (cross.q_proj(x), keys, values))
        x = decoder.norms[1](
            x + cross.o_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        )
        made: Tensor = decoder.head(decoder.norms[2](x + decoder.ff[0](x)))
        return made


class OfIds(Over):
    """A convolution over embedded ids, without a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(30, 10)
        self.near = nn.Conv1d(10, 32, 3, padding=1)

    def memory(self, frames: Tensor) -> Tensor:
        return self.near(self.words(frames).transpose(1, 2)).transpose(1, 2)


class Masked(Over):
    """Attention to the memory with a mask (B or 1, 1, 1, S), made of the frames or the memory."""

    def __init__(self, *masks: Callable[[Tensor], Tensor], of_memory: bool = False) -> None:
        super().__init__()
        self.masks, self.of_memory = (masks * 2)[:2], of_memory

    def forward(self, frames: Tensor, ids: Tensor) -> Tensor:
        memory = self.memory(frames)
        for layer, mask in zip(self.decoder.cross, self.masks, strict=True):
            keep = mask(memory if self.of_memory else frames)
            layer.forward = MaskedForward(layer, keep)
        made: Tensor = self.decoder(ids, memory)
        return made


class MaskedForward:
    def __init__(self, layer: Any, keep: Tensor) -> None:
        self.layer, self.keep = layer, keep

    def __call__(self, x: Tensor, memory: Tensor) -> Tensor:
        layer, heads = self.layer, self.layer.heads
        q, k, v = layer.q_proj(x), layer.k_proj(memory), layer.v_proj(memory)
        q, k, v = (y.unflatten(2, (heads, -1)).transpose(1, 2) for y in (q, k, v))
        made = F.scaled_dot_product_attention(q, k, v, attn_mask=self.keep)
        result: Tensor = layer.o_proj(made.transpose(1, 2).flatten(2))
        return result


def all_of_them(frames: Tensor) -> Tensor:
    return torch.ones(frames.size(0), 1, 1, frames.size(1)) != 0


def those_that_sound(frames: Tensor) -> Tensor:
    return (frames.abs().sum(-1) != 0)[:, None, None]


def those_that_are_loud(frames: Tensor) -> Tensor:
    return ((frames.abs().sum(-1) != 0) & (frames[..., 0] > -9))[:, None, None]


def loudness(frames: Tensor) -> Tensor:
    return -frames.abs().sum(-1)[:, None, None]


def no_silence(frames: Tensor) -> Tensor:
    return (frames.abs().sum(-1) < 1e6)[:, None, None]


def the_first(frames: Tensor) -> Tensor:
    return (torch.arange(frames.size(1)) < 400)[None, None, None]


def fewer_of_many(frames: Tensor) -> Tensor:
    return torch.zeros(1, 1, 1, frames.size(1)) + frames.size(1) * torch.arange(frames.size(1))


class TwoNorms(Over):
    """Keys and values of one memory by two norms."""

    def __init__(self) -> None:
        super().__init__()
        self.of_keys, self.of_values = nn.LayerNorm(32), nn.LayerNorm(32)
        for layer in self.decoder.cross:
            layer.k_proj.register_forward_pre_hook(lambda _, x: self.of_keys(x[0]))  # type: ignore[union-attr]
            layer.v_proj.register_forward_pre_hook(lambda _, x: self.of_values(x[0]))  # type: ignore[union-attr]


def made(name: str, model: Callable[[], nn.Module], inputs: tuple[Input, ...] = (FRAMES,)) -> Style:
    return Style(name, lambda: trained(model, 3, 1.0), "", inputs, pads_source=False)


OVER = (
    made("plain", Over),
    made("narrow", Narrow),
    made("features", Features),
    made("only layer", OnlyLayer),
    made("split product", SplitProduct),
    made("ids", OfIds, (dataclasses.replace(SOURCE, below=30),)),
    made("mask of ones", lambda: Masked(all_of_them)),
    made("mask", lambda: Masked(those_that_sound)),
)
MASKED = ("mask", "two_epsilons", "parallel")
OTHERS = (
    (
        made("mask of memory", lambda: Masked(those_that_sound, of_memory=True)),
        r"py:\d.* a mask of its own values",
    ),
    (
        made("two masks", lambda: Masked(those_that_sound, those_that_are_loud)),
        r"another mask than \w+ at .*py:\d",
    ),
    (made("window", lambda: Masked(the_first)), r"py:\d.* depends on the length of the source"),
    (made("bias", lambda: Masked(fewer_of_many)), r"py:\d.* depends on the length of the source"),
    (made("two norms", TwoNorms), "keys and values of different tensors"),
    (named("gordic"), r"trg != PAD.* an id of its own meaning"),  # the target's padding is masked
)


def name_of(value: object) -> str:
    return value.name if isinstance(value, Style) else ""


def some_quieter(frames: Tensor) -> Tensor:
    """Hides silence, and lowers the scores of what is quiet."""
    loudness = frames.abs().sum(-1)
    return ((loudness == 0).float() * -1e9 + (loudness < 0.5).float() * -2.0)[:, None, None]


@pytest.mark.exhaustive
@pytest.mark.usefixtures("no_beam_graph")
def test_rows_with_numbers_that_hide_nothing_are_not_decoded_by_the_engine(tmp_path: Path) -> None:
    style = made("quieter", lambda: Masked(some_quieter))
    drawn, silent_frames, quiet = torch.ones(3, 6, 10).unbind()
    silent_frames[3:], quiet[3:] = 0, 0.01
    rows = [row.numpy() for row in (drawn, silent_frames, quiet)]
    _, kept = recognise(style).encode((torch.stack([drawn, silent_frames, quiet]),))
    assert kept.sum(dim=1).tolist() == [6, 3, 0]
    bundle_of(style, tmp_path / "a.bundle", verify=False)
    for engine in ("onnxruntime", *(["native"] if find_spec("tfexport_native") else [])):
        with Translator(tmp_path / "a.bundle", engine=engine) as translator:  # type: ignore[arg-type]
            translator.generate_from([{"frames": row} for row in rows[:2]])
            if engine == "native":
                with pytest.raises(InputError, match="mask none"):
                    translator.generate_from([{"frames": rows[2]}])


def test_a_state_axis_has_a_name_of_its_own() -> None:
    frames = Input("frames", "float32", ("batch", "memory_length", 10))
    assert recognise(made("axis", OnlyLayer, (frames,))).outputs[0].axes[1] == "memory_length_"


@pytest.mark.parametrize("style", few_of(OVER, OVER[3], OVER[4], OVER[7]), ids=name_of)
def test_a_memory_may_have_any_form(style: Style) -> None:
    found = recognise(style)
    assert difference(style, found) <= 5e-5
    widths = {"narrow": 10, "features": 10, "only layer": 16}
    assert len(found.outputs) == 1 + (style.name in MASKED)
    assert found.outputs[0].axes == ("batch", "memory_length", widths.get(style.name, 32))


@pytest.mark.exhaustive  # test_native_decoder has two of them in bundles
@pytest.mark.parametrize("name", DECODERS)
def test_decoders_of_the_styles_compute_the_same(name: str) -> None:
    style = named(name)
    found = recognise(style)
    assert difference(style, found) <= 5e-5
    assert len(found.outputs) == 1 + (style.name in MASKED)


@pytest.mark.parametrize(("style", "wrong"), few_of(OTHERS, OTHERS[0]), ids=name_of)
def test_what_else_the_decoder_takes_of_the_source_is_named(style: Style, wrong: str) -> None:
    with pytest.raises(NotRecognisedError, match=wrong):
        recognise(style)


@pytest.mark.parametrize(
    ("mask", "wrong"),
    few_of(
        ((loudness, "what was recognised differs from forward"), (no_silence, "hid nothing")),
        (loudness, "what was recognised differs from forward"),
    ),
)
def test_a_mask_has_to_hide_positions_and_do_nothing_else(
    mask: Callable[[Tensor], Tensor], wrong: str
) -> None:
    call = call_of(made("", lambda: Masked(mask)))
    probe = read_module(call, "", {}).probe
    with pytest.raises(NotRecognisedError, match=wrong):
        artifacts.recognised_decoder(call, probe)


@pytest.mark.exhaustive
def test_mutations_are_recognised_as_what_they_are_or_not() -> None:
    seen = {"recognised": 0, "not": 0}
    for mutation in drawn_mutations([named(name) for name in DECODERS], 40, seed=1):
        try:
            found = recognise(mutation.style)
        except (NotRecognisedError, ModuleError):
            seen["not"] += 1
        else:
            seen["recognised"] += 1
            if difference(mutation.style, found) > 5e-5:  # such as layers with other masks
                call = call_of(mutation.style)
                probe = read_module(call, "", {}).probe
                with pytest.raises(NotRecognisedError, match="differs from forward"):
                    artifacts.recognised_decoder(call, probe)
    assert min(seen.values()) > 3


# Bundles.


@pytest.mark.usefixtures("no_beam_graph", "few_shapes")
def test_the_bundle_has_the_decoder_besides_its_found_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    style, path = made("narrow", Narrow), tmp_path / "a.bundle"
    result = bundle_of(style, path)
    (note,) = result.notes
    assert note.startswith("its encoder stays in onnxruntime: ")
    manifest = result.bundle_manifest
    assert manifest is not None
    assert manifest.states[0].axes == ("batch", "memory_length", 10)
    assert {"states", "encoder", "decoder", "generate"} == set(manifest.graphs)
    assert result.report is not None
    stages = {each.stage for each in result.report.comparisons}
    assert {"decoder of states", "cached steps"} <= stages
    called = arguments(style)
    with monkeypatch.context() as patched:  # verify recognises nothing
        patched.delattr(artifacts, "recognise_decoder")
        assert verify(path, style.build(), **called, level="quick").passed
    # A weight of the table that differs from the graphs' is found.
    file = path / "weights.json"
    table = json.loads(file.read_text())
    names = [f"decoder.layers.{i}.self_attn.q_proj.weight" for i in (0, 1)]
    table[names[0]] = table[names[1]]
    file.write_text(json.dumps(table))
    rewrite(path, lambda values: values["files"].update(files_of(path)))
    failed = verify(path, style.build(), **called, level="quick")
    wrong = {each.stage for each in failed.comparisons if not each.passed}
    assert wrong - {"native", "native tokens"} == {"decoder of states"}
    with pytest.raises(BundleError, match=r"was not exported from that Masked: memory:"):
        verify(path, OTHERS[0][0].build(), **called, level="quick")

    def spoil(values: dict[str, Any]) -> None:
        decoder = values["module"]["decoder"]
        decoder["states"] = {"name": "memory.states", "dtype": "int64", "axes": ["batch", 3]}
        decoder["kept"] = {"name": "memory.kept", "dtype": "bool", "axes": ["batch", 4]}
        decoder["config"]["target_vocab_size"] = 7
        del values["graphs"]["states"]
        values["graphs"]["alignment"] = "encoder.onnx"

    rewrite(path, spoil)
    with pytest.raises(BundleError) as caught:
        open_bundle(path)
    for part in (
        "module.decoder.states: has axes",
        "module.decoder.kept: is not bool, of the first",
        "is int64, not float32",
        "states is missing",
        "alignment is there, but speech.alignment_heads is not",
        "contradicts module.decoder.config.target_vocab_size",
    ):
        assert part in str(caught.value)


def files_of(path: Path) -> dict[str, Any]:
    content = (path / "weights.json").read_bytes()
    return {"weights.json": {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}}


@pytest.mark.exhaustive
@pytest.mark.usefixtures("no_beam_graph")
@pytest.mark.parametrize("weights", ["int8", "int4", "bf16"])
def test_a_quantised_bundle_has_the_decoder_in_the_kinds_that_the_engine_reads(
    weights: str, tmp_path: Path
) -> None:
    style, path = named("captions"), tmp_path / "a.bundle"
    bundle_of(style, path, quantize=weights)
    if weights == "int4":
        assert not (path / "weights.json").exists()
        assert "int4" in why_not_native(open_bundle(path))
        return
    table = json.loads((path / "weights.json").read_text())
    products = {each["dtype"] for name, each in table.items() if name.endswith("proj.weight")}
    assert products == {"int8" if weights == "int8" else "float32"}
    inputs = draw_inputs(style.case, 4, {}, 1)
    rows = [{"pixels": row} for row in inputs[0].numpy()]
    with Translator(path) as translator:
        native = translator.engine.model.engine.startswith("native")
        assert native == (find_spec("tfexport_native") is not None)
        assert all(len(each.hypotheses[0].tokens) > 0 for each in translator.generate_from(rows))


@pytest.mark.usefixtures("no_beam_graph", "few_shapes")
@pytest.mark.parametrize("name", few_of(("differs", "fails"), "differs"))
def test_what_differs_is_exported_by_its_steps_alone(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(*given: Any, **options: Any) -> RecognisedDecoder:
        if name == "fails":
            raise RuntimeError("of any kind")
        found = recognise_decoder(*given, **options)
        return dataclasses.replace(
            found, config=dataclasses.replace(found.config, activation="silu")
        )

    monkeypatch.setattr(artifacts, "recognise_decoder", wrong)
    result = bundle_of(made("plain", Over), tmp_path / "a.bundle")
    assert result.bundle_manifest is not None
    assert result.bundle_manifest.states == ()
    assert "states" not in result.bundle_manifest.graphs
    words = {"differs": "nor is its decoder: .*differs from forward", "fails": "of any kind"}
    assert len(result.notes) == 1
    assert re.search(words[name], result.notes[0])
    with Translator(tmp_path / "a.bundle") as translator:
        assert translator.engine.model.engine == "onnxruntime"
        assert translator.engine.reason.endswith("of which no decoder was recognised")
