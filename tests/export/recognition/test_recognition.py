"""Models of many styles, recognised by what they compute, and compared with their own forward.

Axes: B batch, S source, T target, V vocabulary.
"""

import dataclasses
import itertools
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.export.incremental.own_case import draw_inputs, draw_target, greedy, logits
from tests.export.recognition.styles import STYLES, Style, drawn_mutations
from tests.export.recognition.styles.style import DECODER, trained
from tests.support.combinations import few_of
from tfexport.bundle import SpecialIds
from tfexport.errors import BundleError, ConfigError, InputError
from tfexport.export import export, verify
from tfexport.export.artifacts import recognised
from tfexport.export.artifacts.module_source import ModuleFacts, read_call
from tfexport.export.artifacts.option_rules import RECOGNISED
from tfexport.export.modules.contract import ModuleError
from tfexport.export.recognition.dataflow import NotRecognisedError
from tfexport.export.recognition.model import Recognised, recognise_model
from tfexport.model_src import build_transformer
from tfexport.model_src.checkpoint.checkpoint import Checkpoint
from tfexport.runtime import Translator
from tfexport.runtime.model.native_engine import why_not_here
from tfexport.typing import silent

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*nested.tensor:UserWarning"),
    pytest.mark.slow,
]
PAGE = Path(__file__).parents[3] / "docs" / "recognition.md"
LONGEST = 20
# The styles that are recognised, of those that the tests have.
KNOWN = (
    "annotated", "gordic", "jamil", "jamil_scalar_norm", "lynn", "pytorch_tutorial",
    "pytorch_pre_norm", "pytorch_stacks", "trevett", "ko", "huang", "huang_scaled_embeddings",
    "lessons", "labml", "toolkit", "d2l", "notebook", "x_transformers",
    "x_transformers_glu_rotary", "torchtune", "llama", "t5", "packed", "einsum_weights", "conv1d",
    "shared_layers",
)  # fmt: skip
FEW = ("lessons",)
# Refused by something else than a line of their code.
WITHOUT_A_LINE = ("captions", "speech", "two_epsilons")


def named(name: str) -> Style:
    return next(style for style in STYLES if style.name == name)


def ids_of(style: Style) -> SpecialIds:
    return SpecialIds(style.pad_id, style.bos_id, style.eos_id)


def arguments(style: Style) -> dict[str, Any]:
    found: dict[str, Any] = {"inputs": style.inputs, "target": style.target}
    return found if style.forward is None else {**found, "forward": style.forward}


def recognise(style: Style) -> Checkpoint:
    """What is exported in place of a style, which was compared with its forward."""
    model, options = style.build(), arguments(style)
    facts = ModuleFacts(SpecialIds(style.pad_id, style.bos_id, style.eos_id), LONGEST)
    call = read_call(model, style.inputs, facts, options, silent)  # type: ignore[arg-type]
    with torch.no_grad():
        return recognised.recognised_checkpoint(call, {})


def difference(style: Style, found: Checkpoint) -> float:
    """Of the log-probabilities of what was recognised and of the style's own forward."""
    model = build_transformer(found.config).eval()
    model.load_state_dict(found.weights)
    largest = 0.0
    for seed, (source, target) in enumerate(((9, 7), (1, LONGEST), (LONGEST, 1))):
        inputs = draw_inputs(style.case, 3, {"source_length": source}, seed)
        tokens = draw_target(style.case, 3, target, seed)
        wanted = logits(style.case, style.build(), inputs, tokens).log_softmax(-1)
        ids = (
            inputs[0].movedim(style.inputs[0].axes.index("batch"), 0),
            tokens.movedim(style.target.axes.index("batch"), 0),
        )
        masks = [torch.ones_like(each) for each in ids]
        with torch.no_grad():
            made: Tensor = model(ids[0], masks[0], ids[1], masks[1]).log_softmax(-1)
        largest = max(largest, float((made - wanted).abs().max()))
    return largest


@pytest.mark.parametrize("name", few_of(KNOWN, *FEW))
def test_what_is_recognised_computes_the_same(name: str) -> None:
    style = named(name)
    assert difference(style, recognise(style)) <= 5e-5


@pytest.mark.messages
@pytest.mark.parametrize(
    "name", few_of([style.name for style in STYLES if style.name not in KNOWN], "alibi")
)
def test_others_are_refused_by_the_line(name: str) -> None:
    with pytest.raises(NotRecognisedError) as caught:
        recognise(named(name))
    assert (".py:" in str(caught.value)) == (name not in WITHOUT_A_LINE)


def test_the_page_lists_every_style() -> None:
    rows = dict(
        re.findall(r"^\| `(\w+)` \|[^|]*\| (yes|no|its decoder)\b", PAGE.read_text(), re.MULTILINE)
    )
    found = {style.name: "its decoder" if style.expected == DECODER else "no" for style in STYLES}
    assert rows == {**found, **dict.fromkeys(KNOWN, "yes")}


def bundle_of(style: Style, path: Path, **options: Any) -> Any:
    return export(style.build(), path, **arguments(style), pad_id=style.pad_id,
                  bos_id=style.bos_id, eos_id=style.eos_id, max_length=LONGEST,
                  **{"verify": "quick", **options})  # fmt: skip


def until_padding(rows: list[list[int]], style: Style) -> list[list[int]]:
    """Rows up to the end token or a padding token, to which some styles attend and some do not."""
    ends = (style.pad_id, style.eos_id)
    return [list(itertools.takewhile(lambda i: i not in ends, row)) for row in rows]


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", KNOWN)
def test_both_engines_give_the_tokens_of_its_own_loop(name: str, tmp_path: Path) -> None:
    style = named(name)
    bundle_of(style, tmp_path / "a.bundle")
    inputs = draw_inputs(style.case, 4, {"source_length": 6}, 3)
    rows = inputs[0].movedim(style.inputs[0].axes.index("batch"), 0).tolist()
    wanted = until_padding(greedy(style.case, style.build(), inputs, LONGEST).tolist(), style)
    engines: tuple[Any, ...] = ("onnxruntime", *(("native",) if not why_not_here() else ()))
    for engine in engines:
        with Translator(tmp_path / "a.bundle", engine=engine) as translator:
            found = translator.generate(rows, max_length=LONGEST)
        tokens = [list(each.hypotheses[0].tokens) for each in found]
        assert until_padding(tokens, style) == wanted


@pytest.mark.usefixtures("few_shapes", "no_search_graphs")
def test_a_recognised_module_is_an_ordinary_bundle(tmp_path: Path) -> None:
    style, path = named("gordic"), tmp_path / "a.bundle"
    made = bundle_of(style, path)
    assert made.layout == RECOGNISED
    assert made.report is not None
    assert made.report.reference == "your TransformerWithNets.forward"
    assert made.manifest.module is None
    assert made.manifest.config["num_heads"] == 2
    parameters = made.manifest.parameters
    assert all(parameters.values()), "each became something"
    found = parameters["decoder_layers.{0…1}.src_multi_headed_attention.qkv_nets.0.weight"]
    assert found == ["decoder.layers.{0…1}.cross_attn.q_proj.weight"]
    inputs = draw_inputs(style.case, 4, {"source_length": 6}, 3)
    wanted = greedy(style.case, style.build(), inputs, LONGEST, banned=[style.pad_id])
    with Translator(path) as translator:
        found = translator.generate(inputs[0].tolist(), suppress_tokens=[style.pad_id])
        by_name = [{"input_ids": row} for row in inputs[0].numpy()]
        assert (
            translator.generate_from(by_name)[0].hypotheses
            == translator.generate(inputs[0].tolist())[0].hypotheses
        )
        with pytest.raises(InputError, match="input_ids"):
            translator.generate_from([{"source": inputs[0][0].numpy()}])
    for row, result in zip(wanted.tolist(), found, strict=True):
        ended = row[: row.index(style.eos_id)] if style.eos_id in row else row
        assert list(result.hypotheses[0].tokens) == ended


@pytest.mark.exhaustive
def test_the_forward_of_a_recognised_module_runs_few_times(tmp_path: Path) -> None:
    style, runs = named("gordic"), list[Any]()
    module = style.build()
    module.register_forward_pre_hook(lambda *given: runs.append(given))
    bundle_of(dataclasses.replace(style, build=lambda: module), tmp_path / "a.bundle")
    assert len(runs) <= 50, "159 where each prefix is run, and bounds are searched from 1 on"


@pytest.mark.exhaustive
def test_verify_compares_with_the_forward_and_recognises_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    style, path = named("gordic"), tmp_path / "a.bundle"
    bundle_of(style, path, verify=False)
    called = arguments(style)
    for name in ("recognise_model", "recognised_checkpoint"):
        monkeypatch.delattr(f"tfexport.export.artifacts.recognised.{name}")
    assert verify(path, style.build(), **called, level="quick").passed
    other = style.build()
    with torch.no_grad():
        next(iter(other.parameters())).mul_(1.01)
    assert not verify(path, other, **called, level="quick").passed
    unlike = named("alibi")
    with pytest.raises(ConfigError, match=r"forward returned .*; expected"):
        verify(path, unlike.build(), **arguments(unlike), level="quick")
    captions = named("captions")
    with pytest.raises(BundleError, match=r"takes input_ids; this one takes pixels"):
        verify(path, captions.build(), **arguments(captions), level="quick")


def recognise_wrongly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let another activation be recognised than there is."""

    def wrong(*given: Any) -> Recognised:
        found = recognise_model(*given)
        config = dataclasses.replace(found.config, activation="silu")
        return Recognised(config, found.state_dict)

    monkeypatch.setattr(recognised, "recognise_model", wrong)


def test_what_differs_is_not_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    recognise_wrongly(monkeypatch)
    with pytest.raises(NotRecognisedError, match="differs from forward"):
        recognise(named("lessons"))


@pytest.mark.exhaustive
def test_what_differs_is_exported_by_its_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recognise_wrongly(monkeypatch)
    made = bundle_of(named("gordic"), tmp_path / "a.bundle")
    assert made.manifest.module is not None
    assert "differs from forward" in made.notes[0]


@pytest.mark.exhaustive  # test_decoder has such bundles too
@pytest.mark.usefixtures("no_beam_graph")
def test_no_model_of_another_form_is_recognised(tmp_path: Path) -> None:
    made = bundle_of(named("alibi"), tmp_path / "a.bundle", verify=False)
    assert made.manifest.module is not None
    assert "not recognised" in made.notes[0]
    assert ".py:" in made.notes[0]  # the line


class MaskedByValues(nn.Module):
    """A decoder that leaves out states of the encoder by their values, which seldom acts."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(32, 16), nn.Embedding(64, 16)
        self.encoder = nn.TransformerEncoderLayer(16, 2, 24, 0.0, batch_first=True)
        self.decoder = nn.TransformerDecoderLayer(16, 2, 24, 0.0, batch_first=True)
        self.out = nn.Linear(16, 32)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        length = target.size(1)
        memory = self.encoder(self.tokens(source) + self.places.weight[: source.size(1)])
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        hidden = self.tokens(target) + self.places.weight[:length]
        dull = memory.abs().amax(-1) < 1e-3
        hidden = self.decoder(hidden, memory, future, memory_key_padding_mask=dull)
        return self.out(hidden)  # type: ignore[no-any-return]


def test_a_mask_of_values_is_not_recognised() -> None:
    """It hides nothing of what is drawn, so that no comparison shows it."""
    style = Style("masked", lambda: trained(MaskedByValues, 5), "", pads_source=False)
    with pytest.raises(NotRecognisedError, match="a mask of its own values"):
        recognise(style)


class AddedAfterwards(nn.Module):
    """Torch's own Transformer, and one more map of its last vectors, added to them."""

    def __init__(self, added: nn.Module) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(32, 16), nn.Embedding(64, 16)
        self.layers = nn.Transformer(16, 2, 1, 1, 24, 0.0, batch_first=True)
        self.added, self.out = added, nn.Linear(16, 32)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        length = target.size(1)
        future = nn.Transformer.generate_square_subsequent_mask(length)
        x = self.tokens(source) + self.places.weight[: source.size(1)]
        y = self.tokens(target) + self.places.weight[:length]
        y = self.layers(x, y, tgt_mask=future)
        y = y + self.added(y)  # here
        return self.out(y)  # type: ignore[no-any-return]


@pytest.mark.messages
@pytest.mark.parametrize(
    "added", [nn.Tanh(), nn.Sequential(nn.Linear(16, 32), nn.GLU())], ids=["tanh", "gated"]
)
def test_what_is_added_without_a_last_matrix_is_refused_by_the_line(added: nn.Module) -> None:
    style = Style(
        "added", lambda: trained(lambda: AddedAfterwards(added), 5), "", pads_source=False
    )
    here = next(i for i, line in enumerate(Path(__file__).read_text().splitlines(), 1)
                if line.endswith("# here"))  # fmt: skip
    with pytest.raises(
        NotRecognisedError, match=rf"at {Path(__file__).name}:{here} in .* is no known activation"
    ):
        recognise(style)


@pytest.mark.exhaustive
def test_mutations_are_recognised_as_what_they_are_or_not() -> None:
    seen = {"recognised": 0, "not recognised": 0, "not exported": 0}
    for mutation in drawn_mutations([named(name) for name in KNOWN], 60, seed=1):
        try:
            found = recognise(mutation.style)
        except NotRecognisedError:
            seen["not recognised"] += 1
        except ModuleError:  # such as a forward that is not causal
            seen["not exported"] += 1
        else:
            seen["recognised"] += 1
            assert difference(mutation.style, found) <= 5e-5, mutation.name
    assert seen["recognised"] > 5
    assert seen["not recognised"] > 5
