"""Real inputs in an ``.npz``, of what was a checkpoint and of what was a module alike."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.conftest import CONFIG
from tests.export.recognition.styles import STYLES
from tests.support import tutorial
from tfexport.bundle import open_bundle
from tfexport.errors import ConfigError, InputError, ParityError
from tfexport.export import Input, export, quantize, verify
from tfexport.export.artifacts.option_rules import RECOGNISED
from tfexport.export.parity.plan import plan_bundle
from tfexport.export.report import EXAMPLES, SAMPLES
from tfexport.runtime import Translator
from tfexport.typing import silent

pytestmark = pytest.mark.usefixtures("few_shapes")
RARE = [9, 8, 7, 6, 5, 4, 3, 9, 9, 8]  # which no drawn row is


def saved(folder: Path, **arrays: Any) -> Path:
    path = folder / "rows.npz"
    np.savez(path, **arrays)
    return path


def of_ids(folder: Path) -> Path:
    return saved(folder, **{"input_ids/0": np.array(RARE), "input_ids/1": np.array([4, 5, 6])})


def is_rare(source: Tensor) -> Tensor:
    """1 for each row (B,) that is ``RARE``, else 0."""
    rare = torch.tensor(RARE)
    if source.shape[1] != len(rare):
        return torch.zeros(len(source))
    return (source == rare).all(1).float()


def faults(report: Any) -> set[str]:
    """The kinds of inputs on which something differs."""
    return {found.inputs for found in report.comparisons if not found.passed}


def shifted(logits: Tensor, source: Tensor) -> Tensor:
    """Logits (B, T, V) with one that is 1 larger, for each row that is ``RARE``."""
    return logits + is_rare(source)[:, None, None] * torch.eye(logits.shape[-1])[5]


def test_a_checkpoint_is_compared_on_arrays_of_ids(
    tmp_path: Path, tiny_bundle: Path, tutorial_model: tutorial.TutorialModel
) -> None:
    def faulty(source: Tensor, target: Tensor) -> Tensor:
        return shifted(tutorial_model(source.T, target.T).transpose(0, 1), source)

    options: Any = {"config": CONFIG, "level": "quick", "reference": faulty}
    assert verify(tiny_bundle, tutorial_model, **options).passed
    file = of_ids(tmp_path)
    assert faults(verify(tiny_bundle, tutorial_model, samples=file, **options)) == {SAMPLES}
    graph = tmp_path / "g.onnx"
    del options["level"]
    with pytest.raises(ParityError):
        export(tutorial_model, tmp_path / "a.bundle", samples=file, verify="quick", **options)
    export(tutorial_model, graph, graph="generate", verify="quick", **options)
    report = verify(graph, tutorial_model, samples=file, level="quick", **options)
    assert faults(report) == {SAMPLES}


def test_masked_ids_are_no_part_of_a_row(tmp_path: Path, tiny_bundle: Path) -> None:
    file = saved(
        tmp_path, input_ids=[[4, 5, 6], [7, 8, 0], [0, 0, 0]],
        attention_mask=[[1, 1, 1], [1, 1, 0], [0, 0, 0]],
    )  # fmt: skip
    plan = plan_bundle(tiny_bundle, open_bundle(tiny_bundle), "quick", file, silent)
    assert plan.rows == ((4, 5, 6), (7, 8))


def test_all_problems_of_the_rows_are_named(
    tmp_path: Path, tiny_bundle: Path, tutorial_model: tutorial.TutorialModel
) -> None:
    rows = {"input_ids/0": [4, 17], "input_ids/1": [4.5], "input_ids/2": [4] * 65}
    file = saved(tmp_path, **rows)
    problems = (
        r"3 problems:\n.*row 0: 'input_ids' holds numbers that are not from 0 to 16"
        r"\n.*row 1: 'input_ids' is float64, not int64\n.*row 2: source_length is 65, of at most 64"
    )
    options: Any = {"config": CONFIG, "samples": file}
    with pytest.raises(InputError, match=problems):
        export(tutorial_model, tmp_path / "a.bundle", **options)
    with pytest.raises(InputError, match=problems):
        quantize(tiny_bundle, tmp_path / "q.bundle", samples=file)
    graph = tmp_path / "g.onnx"
    export(tutorial_model, graph, graph="generate", config=CONFIG, verify=False)
    with pytest.raises(InputError, match=problems):
        verify(graph, tutorial_model, **options)
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("'words' is not an input", {"input_ids": [[3]] * 2, "words": [[3]]}),
        ("… and 10 more", {"input_ids": np.zeros((30, 2)) + 40}),
        ("it holds no rows", {"input_ids": np.zeros((0, 2), int)}),
    ]
    for problem, arrays in wrong:
        with pytest.raises(InputError, match=problem):
            verify(graph, tutorial_model, config=CONFIG, samples=saved(tmp_path, **arrays))


def test_weights_are_judged_on_arrays_of_ids(tmp_path: Path, tiny_bundle: Path) -> None:
    made = quantize(tiny_bundle, tmp_path / "q.bundle", samples=of_ids(tmp_path), accept_loss=True)
    assert made.quality is not None
    with Translator(tiny_bundle) as translator:
        results = translator.generate([RARE, [4, 5, 6]], return_end_token=True, max_length=63)
    assert (made.quality.samples, made.quality.tokens) == (
        2, sum(len(result.hypotheses[0].tokens) for result in results),
    )  # fmt: skip
    with pytest.raises(ConfigError, match="has no effect"):
        quantize(tiny_bundle, tmp_path / "r.bundle", samples=of_ids(tmp_path), source_language="de")


class Bag(nn.Module):
    """Logits of the next token from the ids so far and the sum of the source."""

    def __init__(self, faulty: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(11, 8), nn.Linear(8, 11)
        self.fault = float(faulty)  # of rows whose sum is that of ``RARE``

    def forward(self, input_ids: Tensor, target: Tensor) -> Tensor:
        large = (input_ids.sum(1) == sum(RARE)).float()
        return self.logits(self.table(input_ids), large, target)

    def logits(self, source: Tensor, rare: Tensor, target: Tensor) -> Tensor:
        memory = source.sum(1, keepdim=True)
        logits: Tensor = self.head(torch.tanh(self.table(target).cumsum(1) + memory))
        return logits + self.fault * rare[:, None, None] * torch.eye(11)[5]


class Frames(Bag):
    """The same from frames (B, S, 8), of which those above 50 are rare."""

    def forward(self, frames: Tensor, target: Tensor) -> Tensor:
        return self.logits(frames, (frames.amax((1, 2)) > 50).float(), target)


FACTS: Any = {"pad_id": 0, "bos_id": 1, "eos_id": 2, "max_length": 8}


@pytest.mark.usefixtures("no_beam_graph")
def test_a_module_is_compared_on_arrays(tmp_path: Path) -> None:
    frames = np.full((1, 3, 8), 60, np.float32)
    for model, given, file in (
        (Bag, Input("input_ids", "int64", ("batch", "length")), of_ids),
        (Frames, Input("frames", "float32", ("batch", "length", 8)),
         lambda folder: saved(folder, frames=frames)),
    ):  # fmt: skip
        bundle, samples = tmp_path / f"{model.__name__}.bundle", file(tmp_path)
        options: Any = {"inputs": [given], "samples": samples}
        made = export(model(), bundle, verify="quick", **options, **FACTS)
        assert made.report is not None
        assert EXAMPLES in {found.inputs for found in made.report.comparisons}
        report = verify(bundle, model(faulty=True), level="quick", **options)
        assert faults(report) == {EXAMPLES}


def test_a_recognised_module_is_compared_on_arrays(tmp_path: Path) -> None:
    style = next(style for style in STYLES if style.name == "gordic")
    torch.manual_seed(1)
    made = export(
        style.build(), tmp_path / "a.bundle", inputs=style.inputs, target=style.target,
        forward=style.forward, pad_id=style.pad_id, bos_id=style.bos_id, eos_id=style.eos_id,
        max_length=8, verify="quick", samples=of_ids(tmp_path),
    )  # fmt: skip
    assert made.layout == RECOGNISED
    assert made.report is not None
    assert SAMPLES in {found.inputs for found in made.report.comparisons}
