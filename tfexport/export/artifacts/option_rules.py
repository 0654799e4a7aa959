"""What an export writes, and which options can be combined. Does not import torch."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfexport.atomic import check_new_file
from tfexport.bundle import check_output
from tfexport.errors import ConfigError, Message, Option, join_problems, shown
from tfexport.typing import PathLike, Progress

# Kinds of outputs. Those of graph forms are the names of the forms.
BUNDLE = "bundle"
GENERATE, FORWARD = "generate", "forward"
TORCHSCRIPT, TORCH_EXPORT = "torchscript", "torch.export"
TORCH_FILES = (TORCHSCRIPT, TORCH_EXPORT)
_SUFFIXES = {".ts": TORCHSCRIPT, ".pt": TORCHSCRIPT, ".pt2": TORCH_EXPORT}

TOKENIZERS = ("tokenizer", "source_tokenizer", "target_tokenizer")
SPLITS = ("split", "source_split", "target_split")
LANGUAGES = ("source_language", "target_language")
# Option to the kinds of output that support it.
_GOES_WITH: dict[str, tuple[str, ...]] = {
    "attention_biases": (FORWARD,),
    "log_probs": (FORWARD,),
    "output_attentions": (BUNDLE, GENERATE),
    "text": (GENERATE,),
    "expect": (BUNDLE,),
    "quantize": (BUNDLE, GENERATE),
    "reads": (BUNDLE,),
}
_NOT_OF_TORCH = ("opset", "portable", "samples", *TOKENIZERS, *SPLITS, *LANGUAGES)

# Custom modules: the arguments ``NEEDED`` are required, and one of ``DECLARE_INPUTS``.
NEEDED = ("pad_id", "bos_id", "eos_id", "max_length")
DECLARE_INPUTS = ("inputs", "example")
FRAMING = ("add_source_bos", "add_source_eos")
CALL = (*DECLARE_INPUTS, "forward", "target", "steps")  # how a module is called
BY_FORWARD, BY_METHODS = "forward", "methods"
STEPS = (BY_FORWARD, BY_METHODS)  # what the steps of a module are made of
RECOGNISED = "recognised"  # the layout of a module that is recognised
OF_MODULES = (*NEEDED, "unk_id", "examples", *CALL, *FRAMING, "recognise")
OF_CHECKPOINTS = (
    "config", "settings", "layout", "rename", "reference", "target_tokenizer", "output_attentions",
    "attention_biases", "log_probs", "text",
)  # fmt: skip
_MODULE_GOES_WITH: dict[str, tuple[str, ...]] = {
    "quantize": (BUNDLE,),
    "samples": (BUNDLE,),
    "expect": (BUNDLE,),
    "reads": (BUNDLE,),
    **dict.fromkeys((*TOKENIZERS[:2], *SPLITS, *FRAMING, *LANGUAGES), (BUNDLE,)),
    "opset": (BUNDLE, GENERATE),
    "portable": (BUNDLE, GENERATE),
}


@dataclass(frozen=True)
class Output:
    """What an export writes, and how.

    Attributes:
        path: the bundle's folder, or the file.
        kind: ``BUNDLE``, the name of a graph form, ``TORCHSCRIPT`` or ``TORCH_EXPORT``.
        weights: "int8", "int4" or "bf16"; None for float32.
        level: how much is compared with eager PyTorch: "full", "quick", or "" for nothing.
        accept_loss: write quantised weights even if their quality is not good enough.
        force: replace what exists.
        progress: called at every step.
    """

    path: Path
    kind: str
    weights: str | None
    level: str
    accept_loss: bool
    force: bool
    progress: Progress


def kind_of(output: PathLike, graph: str | None) -> str:
    """The kind of output that a path and the option ``graph`` select; see ``export``."""
    return graph or _SUFFIXES.get(Path(output).suffix, BUNDLE)


def is_module(given: Mapping[str, Any]) -> bool:
    """Whether the options are those of a custom module."""
    return any(given.get(name) is not None for name in (*NEEDED, *DECLARE_INPUTS))


def takes(kind: str, name: str) -> bool:
    """Whether the export of a custom module supports an option.

    Args:
        kind: the kind of the output.
        name: the name of the option.
    """
    return name not in _MODULE_GOES_WITH or kind in _MODULE_GOES_WITH[name]


def check_export(
    output: PathLike, graph: str | None, given: Mapping[str, Any], force: bool = False
) -> str:
    """Before any work, refuse an export that is not possible.

    Args:
        output: the bundle's folder, or the file.
        graph: see ``export``.
        given: options of ``export`` by name, ``quantize`` among them; one that is false, None or
            empty counts as not given.
        force: replace what exists.

    Returns:
        The kind of the output.

    Raises:
        ConfigError: options that contradict each other or the kind of output; the message lists
            all of them.
        OutputExistsError: the output exists.
    """
    kind = kind_of(output, graph)
    problems = [*(_of_module if is_module(given) else _of_checkpoint)(kind, given)]
    if kind == BUNDLE and Path(output).suffix == ".onnx":
        advice = "a bundle is a folder. Name a folder, or select a single graph with "
        problems.append(Message(f"{output}: {advice}", Option("graph"), "."))
    if given.get("quantize") and given.get("portable"):
        own = " uses onnxruntime's own operators; omit "
        problems.append(Message(Option("quantize"), own, Option("portable"), "."))
    if given.get("accept_loss") and not given.get("quantize"):
        problems.append(Message(Option("accept_loss"), " requires ", Option("quantize"), "."))
    elif given.get("accept_loss") and kind != BUNDLE and given.get("samples") is None:
        problems.append(Message(Option("accept_loss"), " requires ", Option("samples"), "."))
    if len(problems) == 1:
        raise ConfigError(problems[0])
    if problems:
        raise ConfigError(join_problems("options", problems))
    (check_output if kind == BUNDLE else check_new_file)(output, force)
    return kind


def _of_checkpoint(kind: str, given: Mapping[str, Any]) -> Iterator[Message]:
    for name in OF_MODULES:
        if given.get(name):
            text = " applies to custom modules, which are exported with "
            yield Message(Option(name), text, Option("inputs"), ".")
    yield from _misplaced(kind, given, _GOES_WITH)
    if kind in TORCH_FILES:
        for name in _NOT_OF_TORCH:
            if given.get(name):
                yield Message(Option(name), " requires a bundle or an ONNX graph.")
        return
    if given.get("text") and given.get("output_attentions"):
        yield Message(
            Option("text"),
            " has no ids as inputs and outputs, which attention refers to; omit ",
            Option("output_attentions"),
            ".",
        )
    yield from _samples_and_tokenizers(kind, given)


def _of_module(kind: str, given: Mapping[str, Any]) -> Iterator[Message]:
    if kind not in (BUNDLE, GENERATE, TORCHSCRIPT):
        known = f" is not available for custom modules; use {GENERATE!r} or {TORCHSCRIPT!r}"
        yield Message(Option("graph"), f": {shown(kind)}", known)
    for name in NEEDED:
        if given.get(name) is None:
            text = " is required for a custom module. Values for a checkpoint are set with "
            yield Message(Option(name), text, Option("config"), ".")
    yield from declared_twice(given)
    if all(given.get(name) is None for name in DECLARE_INPUTS):
        yield Message(
            Option("inputs"), ", or ", Option("example"), ", is required for a custom module."
        )
    for name in OF_CHECKPOINTS:
        if given.get(name):
            yield Message(Option(name), " applies to checkpoints, not to custom modules.")
    yield from _misplaced(kind, given, _MODULE_GOES_WITH)


def declared_twice(given: Mapping[str, Any]) -> Iterator[Message]:
    """A problem if there are both an example and what it declares."""
    for name in ("inputs", "target"):
        if given.get("example") is not None and given.get(name) is not None:
            text = " declares the inputs and the target ids; omit "
            yield Message(Option("example"), text, Option(name), ".")


def _misplaced(
    kind: str, given: Mapping[str, Any], goes_with: Mapping[str, tuple[str, ...]]
) -> Iterator[Message]:
    for name, kinds in goes_with.items():
        if not given.get(name) or kind in kinds:
            continue
        wanted = next((each for each in kinds if each != BUNDLE), None)
        if wanted is None and kind in TORCH_FILES:
            yield Message(Option(name), " requires a bundle.")
        elif wanted is None:
            yield Message(Option(name), " requires a bundle; omit ", Option("graph"), ".")
        else:
            bundle = "a bundle or " if BUNDLE in kinds else ""
            yield Message(Option(name), f" requires {bundle}", Option("graph", wanted), ".")


def _samples_and_tokenizers(kind: str, given: Mapping[str, Any]) -> Iterator[Message]:
    text, quantize, samples = (given.get(name) for name in ("text", "quantize", "samples"))
    if samples is not None and kind != BUNDLE and not text and not quantize:
        yield Message(
            Option("samples"), " requires a bundle, ", Option("text"), " or ",
            Option("quantize"), ".",
        )  # fmt: skip
    for name in LANGUAGES:
        if given.get(name) is None:
            continue
        if samples is None and given.get("expect") is None:
            of_samples = " is the language of the samples; set them with "
            yield Message(Option(name), of_samples, Option("samples"), ".")
        elif kind != BUNDLE and not quantize:
            yield Message(Option(name), " requires a bundle or ", Option("quantize"), ".")
    # The samples for quantising are text, too.
    needed = kind == BUNDLE or text or (quantize and samples is not None)
    for names in (TOKENIZERS, SPLITS):
        if not needed and any(given.get(name) is not None for name in names):
            yield Message("a graph of ids contains no tokenizer; omit ", Option(names[0]), ".")
