"""Rows of arrays, sounds or pictures for ``tfexport translate``: from ``--inputs``, or files."""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from tfexport.cli.console import ProblemLines, spell
from tfexport.cli.decoding_options import given, without_effect
from tfexport.errors import ConfigError, Problem, join_problems

if TYPE_CHECKING:
    from tfexport.runtime.engine import Engine

# Options of lines of text that rows do not have.
_OF_LINES = ("ids", "resume", "alignment", "attention_plot", "target_prefix_file", "vocabulary_map")
_LARGEST_LIST = 1 << 26  # bytes of a list of files


def check_inputs_call(call: Any) -> None:
    """Refuse options that do not apply to ``--inputs``.

    Raises:
        ConfigError: there are any; all are listed.
    """
    problems = _not_of_rows(call, "--inputs reads rows of arrays")
    if call.file != "-":
        text = f"{call.file}: give either a file of lines or --inputs"
        problems.insert(0, Problem(None, text))
    if problems:
        raise ConfigError(join_problems("translate", problems))


def check_files(call: Any, media: str | None) -> None:
    """Refuse what does not apply to the files of a bundle.

    Args:
        call: the arguments and options.
        media: "audio" or "image" if the bundle reads such files.

    Raises:
        ConfigError: there is any; all is listed.
    """
    problems = []
    if media is None and len(call.files) > 1:
        lines = call.format is None
        kind = "file of lines" if lines else f"file of --format {call.format}"
        text = f"one {kind} is read at a time, and {len(call.files)} are given: call it for each"
        text += ", or 'tfexport corpus' for a folder of them" if lines else ""
        problems.append(Problem(None, f"{call.bundle}: {text}"))
    if media is not None and call.files:
        problems += _not_of_rows(call, f"files of {call.bundle} are {media}")
        if call.format is not None:
            problems.append(Problem(None, "--format applies to text"))
    if call.max_seconds is not None and media != "audio":
        problems.append(Problem(None, f"--max-seconds: {call.bundle} does not read sound"))
    if problems:
        raise ConfigError(join_problems("translate", problems))


def _not_of_rows(call: Any, reason: str) -> list[Problem]:
    """The problems of options that apply to lines."""
    problems = [
        Problem(None, f"--{name.replace('_', '-')} applies to lines; {reason}")
        for name in _OF_LINES
        if getattr(call, name)
    ]
    if call.decoding.get("replace_unknowns"):
        problems.append(Problem(None, "--replace-unknowns applies to text, not to arrays"))
    texts = without_effect({**call.decoding, "force": call.force}, {
        "force": call.output != "-", "return_token_scores": call.jsonl,
        "return_attention": call.jsonl,
    })  # fmt: skip
    return [*problems, *(Problem(None, text) for text in texts)]


def read_rows(call: Any, engine: "Engine") -> Sequence[Mapping[str, Any]] | None:
    """The rows of a call; None if it is one of lines.

    Raises:
        ConfigError: the bundle takes text.
        InputError: the file of rows is damaged.
        OSError: it cannot be read.
    """
    from tfexport.runtime.files.array_rows import read_array_rows

    media, io = engine.manifest.media, engine.manifest.module_io
    if call.inputs is None:
        return [{media: file} for file in call.files] if media and call.files else None
    if io is None:
        raise ConfigError(
            f"{call.bundle}: takes text or ids, not arrays: --inputs is for a custom module."
        )
    if media is not None and (listed := _read_list(Path(call.inputs))) is not None:
        return [{media: file} for file in listed]
    return read_array_rows(call.inputs, io.inputs)


def _read_list(path: Path) -> list[str] | None:
    """The names in a text file, one a line; None if it holds no text."""
    with path.open("rb") as file:
        content = file.read(_LARGEST_LIST + 1)
    try:
        if content.startswith(b"PK") or len(content) > _LARGEST_LIST:  # an archive of arrays
            return None
        return [name for line in content.decode("utf-8-sig").splitlines() if (name := line.strip())]
    except UnicodeDecodeError:
        return None


def translate_rows(call: Any, engine: "Engine", rows: Sequence[Mapping[str, Any]]) -> int:
    """Decode rows; return how many could not be decoded."""
    from tfexport.atomic import new_file
    from tfexport.runtime.files.line_stream import LineFormat
    from tfexport.runtime.text.codec import LanguagePair

    keywords = given(call.decoding, ids=not engine.gives_text)
    keywords["return_scores"] = call.jsonl
    prefix = call.target_prefix
    if prefix is not None and not engine.gives_text:
        from tfexport.runtime.files.input_lines import read_numbers

        prefix = read_numbers(prefix)
    language_pair = LanguagePair(call.source_language, call.target_language, as_ids=True)
    options, (start,) = engine.resolver.resolve(keywords, [prefix], language_pair=language_pair)
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
    rows: Sequence[Mapping[str, Any]],
    options: Any,
    prefix: tuple[int, ...],
    lines: Callable[[Any], list[str]],
    file: TextIO,
) -> int:
    from tfexport.runtime.files.array_rows import decode_rows

    bad, problems = 0, ProblemLines(call.inputs or "files", " row ")
    media = engine.manifest.media
    for result in decode_rows(engine, rows, options, prefix):
        if result.problem is not None:
            bad += 1
            problem = result.problem.spelled(spell)
            name = None if media is None else rows[result.number].get(media)
            if isinstance(name, str) and name not in problem:
                problem = f"{name}: {problem}"
            problems.add(result.number, problem)
        for line in lines(result):
            file.write(line + "\n")
    problems.end()
    return bad
