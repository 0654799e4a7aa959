"""``tfexport translate --inputs``: rows of arrays, for a bundle that holds a user's module."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from tfexport.cli.bars import ProblemLines
from tfexport.cli.decoding_options import given, without_effect
from tfexport.cli.spelling import spell
from tfexport.errors import ConfigError, Problem, join_problems

if TYPE_CHECKING:
    from tfexport.runtime.engine import Engine

# Options of lines of text that rows of arrays have not.
_OF_LINES = ("ids", "resume", "alignment", "attention_plot", "target_prefix_file", "vocabulary_map")


def check_inputs_call(call: Any) -> None:
    """Refuse options that do not go with ``--inputs``.

    Raises:
        ConfigError: naming all of them.
    """
    problems = [
        Problem(None, f"--{name.replace('_', '-')} is of lines; --inputs gives rows of arrays")
        for name in _OF_LINES
        if getattr(call, name)
    ]
    if call.file != "-":
        problems.append(Problem(None, f"{call.file}: give either a file of lines or --inputs"))
    if call.decoding.get("replace_unknowns"):
        problems.append(Problem(None, "--replace-unknowns acts on the words of a text"))
    texts = without_effect({**call.decoding, "force": call.force}, {
        "force": call.output != "-", "return_token_scores": call.jsonl,
        "return_attention": call.jsonl,
    })  # fmt: skip
    problems += [Problem(None, text) for text in texts]
    if problems:
        raise ConfigError(join_problems("translate", problems))


def translate_inputs(call: Any, engine: "Engine") -> int:
    """Decode the rows of ``call.inputs``; return how many could not be decoded."""
    from tfexport.atomic import new_file
    from tfexport.runtime.files.array_rows import read_array_rows
    from tfexport.runtime.files.line_stream import LineFormat
    from tfexport.runtime.language_tokens import Spoken

    io = engine.manifest.module_io
    if io is None:
        raise ConfigError(
            f"{call.bundle}: takes text or ids, not arrays: --inputs is for a custom module."
        )
    keywords = given(call.decoding, ids=not engine.gives_text)
    keywords["return_scores"] = call.jsonl
    prefix = call.target_prefix
    if prefix is not None and not engine.gives_text:
        from tfexport.runtime.files.input_lines import read_numbers

        prefix = read_numbers(prefix)
    spoken = Spoken(call.source_language, call.target_language, as_ids=True)
    options, (start,) = engine.resolver.resolve(keywords, [prefix], spoken=spoken)
    rows = read_array_rows(call.inputs, io.inputs)
    line_format = LineFormat(
        call.jsonl, False, not engine.gives_text, options.num_hypotheses, spell
    )

    def write(file: TextIO) -> int:
        return _write(call, engine, rows, options, start, line_format.write, file)

    if call.output == "-":
        return write(sys.stdout)
    with (
        new_file(call.output, call.force) as path,
        Path(path).open("w", encoding="utf-8", newline="\n") as file,
    ):
        return write(file)


def _write(
    call: Any,
    engine: "Engine",
    rows: list[dict[str, Any]],
    options: Any,
    prefix: tuple[int, ...],
    lines: Callable[[Any], list[str]],
    file: TextIO,
) -> int:
    from tfexport.runtime.files.array_rows import decode_rows

    bad, problems = 0, ProblemLines(call.inputs, " row ")
    for result in decode_rows(engine, rows, options, prefix):
        if result.problem is not None:
            bad += 1
            problem = result.problem.spelled(spell)
            problems.add(result.number, problem)
        for line in lines(result):
            file.write(line + "\n")
    problems.end()
    return bad
