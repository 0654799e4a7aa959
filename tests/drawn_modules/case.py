"""One case: a drawn module is written, imported, exported, and compared with the judge."""

import importlib.util
import json
import re
import shutil
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from tests.drawn_modules.judge import Judge
from tests.drawn_modules.model_source import source_of, spec_of
from tests.drawn_modules.productions import Design, draw_design
from tests.drawn_modules.rows import Row, draw_rows, sharpen
from tests.drawn_modules.spec import BATCH, BOS, EOS, MAX_LENGTH, PAD, Spec
from tfexport.errors import TfexportError
from tfexport.export import Input, export
from tfexport.runtime import Translator

NATIVE, STEPS, RECOMPUTED = "native", "steps", "recomputed"
REFUSED, BADLY_REFUSED = "refused", "badly refused"
DIFFERENCE, TRACEBACK, DIED = "difference", "traceback", "died"
OUTCOMES = (NATIVE, STEPS, RECOMPUTED, REFUSED, BADLY_REFUSED, DIFFERENCE, TRACEBACK, DIED)
EXPORTED = (NATIVE, STEPS, RECOMPUTED)
_PLACE = re.compile(r"drawn_\d+\.py(?:, line |:)\d+")
# What a message tells its reader to do. A page that is named without more is no way out.
_POINTER = "docs/training-script.md says what a forward may give."
_ADVICE = re.compile(
    r"\b(use|give|take|pass|write|make|set|split|export|move|remove|return|mask|call|register|put|"
    r"keep|pad|unwrap|merge|add|declare|normalise|own methods|instead)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Result:
    """What became of one case.

    Attributes:
        seed: of the draw.
        labels: the productions of the module.
        outcome: one of ``OUTCOMES``.
        message: of an error or a difference; for an export, why it is not native or has no steps.
        expected: why an export has to refuse the module; empty if it has to export it.
        again: tensors that each step computes for all tokens.
        seconds: of the clock.
    """

    seed: int
    labels: tuple[str, ...]
    outcome: str
    message: str
    expected: str
    again: int
    seconds: float

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @property
    def is_bad(self) -> bool:
        """Whether somebody has to look at it."""
        unexpected = self.outcome == REFUSED and not self.expected
        return unexpected or self.outcome in (BADLY_REFUSED, DIFFERENCE, TRACEBACK, DIED)


def run_case(seed: int, folder: Path, **options: Any) -> Result:
    """Draw a module, export it into a folder, and compare the bundle with the module.

    Args:
        seed: of the draw.
        folder: for the source, ``drawn_SEED.py``, which stays, and for the bundle, which does not.
        **options: of ``export``, beyond those of every case.
    """
    return run_design(draw_design(seed), folder, **options)


def run_design(design: Design, folder: Path, **options: Any) -> Result:
    """As ``run_case``, for a design."""
    start = time.monotonic()
    spec, bundle = spec_of(design), folder / f"drawn_{design.seed}.bundle"
    again = 0
    try:
        module, call = load(design, folder)
        outcome, message, again = _exported(spec, module, call, bundle, options)
        judged = Judge(spec, module, call)
        # docs/recognition.md: a recognised decoder does not mask padding that it writes itself.
        masks = outcome != NATIVE and "target_padding/own" in spec.labels
        if outcome in EXPORTED and (difference := _compare(spec, judged, bundle, masks)):
            outcome, message = DIFFERENCE, difference
    except Exception as error:
        outcome, message = TRACEBACK, _described(error)
    finally:
        shutil.rmtree(bundle, ignore_errors=True)
        torch._dynamo.reset()
    seconds = round(time.monotonic() - start, 2)
    return Result(
        design.seed, design.labels, outcome, message, spec.refused_because, again, seconds
    )


def load(design: Design, folder: Path) -> tuple[nn.Module, Callable[..., Any] | None]:
    """Write the source of a design, import it, and build the module, with weights of its seed."""
    path = folder / f"drawn_{design.seed}.py"
    path.write_text(f"# {design.line}\n{source_of(design)}")
    file = _imported(path)
    torch.manual_seed(design.seed)
    module = file.build()
    assert isinstance(module, nn.Module)
    sharpen(module, design.seed)
    return module.eval(), getattr(file, "call", None)


def _imported(path: Path) -> ModuleType:
    found = importlib.util.spec_from_file_location(path.stem, path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found.loader.exec_module(module)
    return module


def _exported(
    spec: Spec, module: nn.Module, call: Callable[..., Any] | None, bundle: Path,
    options: dict[str, Any],
) -> tuple[str, str, int]:  # fmt: skip
    """Export a module; the outcome, its message, and how much each step computes again.

    As a user does, it gives what is not the default only.
    """
    given: dict[str, Any] = {"verify": "quick", **options}
    if spec.target_axes[0] != BATCH:
        given["target"] = Input("target", "int64", spec.target_axes)
    if call is not None:
        given["forward"] = call
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            written = export(
                module,
                bundle,
                inputs=[Input(each.name, each.dtype, each.axes) for each in spec.inputs],
                pad_id=PAD,
                bos_id=BOS,
                eos_id=EOS,
                max_length=MAX_LENGTH,
                force=True,
                pack=False,
                **given,
            )
        except TfexportError as error:
            message = str(error)
            return (REFUSED if is_well_refused(message) else BADLY_REFUSED), message, 0
    manifest = json.loads((bundle / "manifest.json").read_text())
    return _outcome_of(manifest.get("module"), "; ".join(map(str, written.notes)))


def _outcome_of(module: dict[str, Any] | None, notes: str) -> tuple[str, str, int]:
    if module is None or module.get("decoder"):
        return NATIVE, notes, 0
    again = module.get("found", {}).get("again", [])
    if module.get("recomputes"):
        return RECOMPUTED, "; ".join(again) or notes, len(again)
    return STEPS, notes, len(again)


def is_well_refused(message: str) -> bool:
    """Whether a message names a line of the user's file and says what to do."""
    advice = message.replace(_POINTER, "")
    return bool(_PLACE.search(message) and _ADVICE.search(_PLACE.sub("", advice)))


def _compare(spec: Spec, judge: Judge, bundle: Path, masks_padding: bool) -> str:
    """How a bundle differs from the module, over rows of several sizes; empty if it does not.

    Args:
        spec: of the module.
        judge: of the module.
        bundle: its folder.
        masks_padding: whether padding in the target is hidden; if not, what follows it in a
            module that masks it is not compared.
    """
    rows = draw_rows(spec)
    translator = Translator(bundle)
    forced = [5, PAD, 7] if masks_padding else [5, 7]
    ignored = "target_padding/own" in spec.labels and not masks_padding
    for least, prefix in ((0, []), (MAX_LENGTH, []), (MAX_LENGTH, forced)):
        options: dict[str, Any] = {
            "beam_size": 1, "max_length": MAX_LENGTH, "min_length": least,
            "return_token_scores": True,
        }  # fmt: skip
        for way, given in (("one row", rows[-1:]), ("rows", rows), ("ids", rows)):
            more = {**options, "target_prefix": [prefix] * len(given)} if prefix else options
            if way != "ids":
                results = translator.generate_from(given, **more)
            elif spec.has_ids:
                results = translator.generate([row["input_ids"].tolist() for row in given], **more)
            else:
                continue
            for number, (row, result) in enumerate(zip(given, results, strict=True)):
                best = result.hypotheses[0]
                tokens, scores, most = best.tokens, best.token_scores or [], MAX_LENGTH
                if ignored and PAD in tokens:
                    most = tokens.index(PAD) + 1
                    tokens, scores = tokens[:most], scores[:most]
                wrong = judge.difference(row, tokens, scores, most, least, prefix)
                if wrong:
                    asked = f"at least {least} tokens" + (f" after {prefix}" if prefix else "")
                    return f"{way}, row {number} {_sizes(row)}, {asked}: {wrong}"
    return ""


def _sizes(row: Row) -> str:
    return ", ".join(f"{name} {tuple(array.shape)}" for name, array in row.items())


def _described(error: Exception) -> str:
    """An error that is none of the project's own: its last lines in the project."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "tfexport" in Path(frame.filename).parts] or frames
    places = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in own[-2:]]
    return f"{type(error).__name__} at {', '.join(places)}: {str(error)[:400]}"
