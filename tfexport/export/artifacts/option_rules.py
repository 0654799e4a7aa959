"""Which options of an ONNX export go together. Needs no torch, which takes a second to load."""

from collections.abc import Iterator, Mapping
from typing import Any

from tfexport.atomic import check_new_file
from tfexport.bundle import check_output
from tfexport.errors import ConfigError, Message, Option, join_problems
from tfexport.typing import PathLike

GENERATE, FORWARD = "generate", "forward"
TOKENIZERS = ("tokenizer", "source_tokenizer", "target_tokenizer")
SPLITS = ("split", "source_split", "target_split")
LANGUAGES = ("source_language", "target_language")
# Option to the graphs that it goes with; None is a bundle.
_GOES_WITH: dict[str, tuple[str | None, ...]] = {
    "attention_biases": (FORWARD,),
    "log_probs": (FORWARD,),
    "output_attentions": (None, GENERATE),
    "text": (GENERATE,),
    "expect": (None,),
    "quantize": (None, GENERATE),
    "reads": (None,),
}


def check_onnx_export(output: PathLike, force: bool, given: Mapping[str, Any]) -> None:
    """Refuse what ``tfexport onnx`` cannot make, before any work is done for it.

    Args:
        output: the bundle's folder, or the file of a single graph.
        force: replace what exists.
        given: options of ``export_onnx`` by name.

    Raises:
        ConfigError: options that do not go together, or a bundle that is named like a file.
        OutputExistsError: the output stands in the way.
    """
    graph = given.get("graph")
    check_options(graph, given)
    problems = [*_samples_and_tokenizers(graph, given)]
    if graph is None and str(output).endswith(".onnx"):
        advice = "a bundle is a folder. Name a folder, or one graph with "
        problems.append(Message(f"{output}: {advice}", Option("graph"), "."))
    _refuse(problems)
    (check_output if graph is None else check_new_file)(output, force)


def check_options(graph: str | None, given: Mapping[str, Any]) -> None:
    """Refuse options that do not go with a graph, or with each other.

    Args:
        graph: name of a form of ``graph_forms``; None for a bundle.
        given: option to value; one that is false, None or empty counts as not given.

    Raises:
        ConfigError: naming all that do not go together.
    """
    _refuse([*_contradictions(graph, given)])


def _refuse(problems: list[Message]) -> None:
    if len(problems) == 1:
        raise ConfigError(problems[0])
    if problems:
        raise ConfigError(join_problems("options", problems))


def _contradictions(graph: str | None, given: Mapping[str, Any]) -> Iterator[Message]:
    for name, graphs in _GOES_WITH.items():
        if given.get(name) and graph not in graphs:
            wanted = next((each for each in graphs if each is not None), None)
            if wanted is None:
                yield Message(Option(name), " goes with a bundle; leave ", Option("graph"), " out.")
                continue
            bundle = "a bundle or with " if None in graphs else ""
            yield Message(Option(name), f" goes with {bundle}", Option("graph", wanted), ".")
    if given.get("text") and given.get("output_attentions"):
        yield Message(
            Option("text"),
            " has no tokens that attention could be shown between; leave ",
            Option("output_attentions"),
            " out.",
        )
    if given.get("quantize") and given.get("portable"):
        yield Message(
            Option("quantize"),
            " takes onnxruntime's own operators; leave ",
            Option("portable"),
            " out.",
        )


def _samples_and_tokenizers(graph: str | None, given: Mapping[str, Any]) -> Iterator[Message]:
    text, quantize, samples = (given.get(name) for name in ("text", "quantize", "samples"))
    if samples is not None and graph is not None and not text and not quantize:
        yield Message(
            Option("samples"), " goes with a bundle, ", Option("text"), " or ",
            Option("quantize"), ".",
        )  # fmt: skip
    for name in LANGUAGES:
        if given.get(name) is None:
            continue
        if samples is None and given.get("expect") is None:
            of_samples = " is of the samples; name them with "
            yield Message(Option(name), of_samples, Option("samples"), ".")
        elif graph is not None and not quantize:
            yield Message(Option(name), " goes with a bundle or with ", Option("quantize"), ".")
    # Samples to quantise by are text as well.
    needed = graph is None or text or (quantize and samples is not None)
    for names in (TOKENIZERS, SPLITS):
        if not needed and any(given.get(name) is not None for name in names):
            yield Message("a graph of ids holds no tokenizer; leave ", Option(names[0]), " out.")
