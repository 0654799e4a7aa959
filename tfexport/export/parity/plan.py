"""What a comparison runs: the number of shapes, and real inputs in addition to random ones."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeGuard

from tfexport.bundle import Manifest
from tfexport.errors import (
    ConfigError,
    InputError,
    Message,
    MissingDependencyError,
    Option,
    Problem,
    TokenizerError,
    TooLongError,
    join_problems,
    shown,
)
from tfexport.export.report import SAMPLES, SENTENCES
from tfexport.graph_io import INPUT_IDS, SOURCE, SOURCE_INPUTS
from tfexport.languages import Languages
from tfexport.model_src.config import TransformerConfig
from tfexport.module_rows import Array, Row, unmasked_ids
from tfexport.runtime.files.array_rows import SUFFIX, read_checked_rows, read_rows_of
from tfexport.runtime.text.codec import (
    NO_LANGUAGES,
    Framing,
    LanguagePair,
    TextCodec,
    check_ids,
    find_language_tokens,
)
from tfexport.typing import PathLike, Progress, silent

FULL, QUICK, NONE = "full", "quick", "none"
MOST_ROWS = 32  # of real inputs
MOST_SENTENCES = 8
# Common words in several languages. Sentences with an unknown token are skipped.
_SENTENCES = (
    "The train to Berlin leaves at half past seven.", "I have not seen my brother for two years.",
    "Where can we buy fresh bread?", "Der Zug nach Berlin fährt um halb acht ab.",
    "Ich habe meinen Bruder seit zwei Jahren nicht gesehen.", "Wo kann man hier Brot kaufen?",
    "Le train pour Paris part à huit heures.", "Où est-ce qu'on peut acheter du pain ?",
    "El tren sale a las ocho de la mañana.", "Поезд отправляется в восемь часов.",
    "Де можна купити хліб?", "火车八点钟出发。", "電車は八時に出ます。",
    "يغادر القطار في الساعة الثامنة.",
)  # fmt: skip


@dataclass(frozen=True)
class ComparisonPlan:
    """The shapes and inputs to compare.

    Attributes:
        level: ``FULL``, or ``QUICK`` for one random batch in addition to the real inputs.
        rows: real inputs: source ids, or the inputs of a module by name.
        inputs: the kind of these inputs.
        progress: called after every batch.
    """

    level: str = FULL
    rows: Sequence[Any] = ()
    inputs: str = SAMPLES
    progress: Progress = silent


def read_level(verify: bool | str) -> str:
    """Convert the argument ``verify`` to ``FULL``, ``QUICK`` or "".

    Raises:
        ConfigError: the value is unknown.
    """
    levels = {True: FULL, FULL: FULL, QUICK: QUICK, False: "", NONE: ""}
    if not isinstance(verify, (bool, str)) or verify not in levels:
        known = ", ".join(map(repr, (FULL, QUICK, NONE)))
        raise ConfigError(Message(Problem("verify", f"{shown(verify)} is not one of {known}")))
    return levels[verify]


def plan_bundle(
    folder: Path,
    manifest: Manifest,
    level: str,
    samples: PathLike | None,
    progress: Progress,
    language_pair: LanguagePair = NO_LANGUAGES,
) -> ComparisonPlan:
    """The plan of a bundle's comparison: the rows of ``samples``, or else built-in sentences.

    Args:
        folder: the folder of the bundle.
        manifest: the manifest of the bundle.
        level: see ``ComparisonPlan``.
        samples: a file of source texts, or of ids where the bundle holds no tokenizer; or an
            ``.npz`` of ids.
        progress: called after every batch.
        language_pair: the languages of ``samples``.

    Raises:
        ConfigError: a language is unknown to the model, or required and missing.
        InputError: an invalid line, or rows of an ``.npz``; all problems of these are listed.
    """
    codec = TextCodec(folder, manifest)
    if are_arrays(samples):
        return ComparisonPlan(level, _first_ids(read_rows_of(samples, manifest)), SAMPLES, progress)
    if samples is not None:
        framing = frame_samples(manifest.languages, language_pair)

        def encode(text: str) -> list[int]:
            if manifest.tokenizers:
                return codec.encode(text, framing=framing)
            return codec.check_ids(_ids(text, "the bundle holds no tokenizer"))

        return ComparisonPlan(level, _read_rows(Path(samples), encode), SAMPLES, progress)
    found = list(_sentences(codec, manifest)) if "source" in manifest.tokenizers else []
    return ComparisonPlan(level, tuple(map(tuple, found[:MOST_SENTENCES])), SENTENCES, progress)


def plan_file(
    name: str, config: TransformerConfig, level: str, samples: PathLike | None, progress: Progress
) -> ComparisonPlan:
    """The plan of a single file's comparison.

    Args:
        name: the name of the file.
        config: the config of the model.
        level: see ``ComparisonPlan``.
        samples: a file of source ids, lines or an ``.npz``.
        progress: called after every batch.

    Raises:
        ConfigError: there are samples, but the model takes no ids.
        InputError: see ``plan_bundle``.
    """
    if samples is None:
        return ComparisonPlan(level, progress=progress)
    size, longest = config.source_vocab_size, config.longest
    if size is None:
        raise ConfigError(Message(Option("samples"), f" must be ids, but {name} takes embeddings."))
    if are_arrays(samples):
        most = {} if longest is None else {SOURCE: longest}
        found = read_checked_rows(samples, SOURCE_INPUTS, {INPUT_IDS: size}, most)
        return ComparisonPlan(level, _first_ids(found), SAMPLES, progress)

    def encode(text: str) -> list[int]:
        row = check_ids(_ids(text, f"{name} takes ids"), size)
        if longest is not None and len(row) > longest:
            raise TooLongError(len(row), longest)
        return row

    return ComparisonPlan(level, _read_rows(Path(samples), encode), SAMPLES, progress)


def are_arrays(samples: PathLike | None) -> TypeGuard[PathLike]:
    """Whether samples are rows of arrays, and not lines."""
    return samples is not None and Path(samples).suffix == SUFFIX


def read_arrays(samples: PathLike, manifest: Manifest) -> list[dict[str, Array]]:
    """The first rows of an ``.npz`` of samples; all rows are checked.

    Raises:
        InputError: naming everything that is wrong with it.
    """
    return read_rows_of(samples, manifest)[:MOST_ROWS]


def read_pairs(path: PathLike, what: str) -> list[tuple[str, str]]:
    """Read lines of a source and, after a tab, an optional target.

    Raises:
        InputError: the file is not UTF-8 text, or empty.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text.") from None
    except OSError as error:
        raise InputError(Message(Option(what), f": {path}: {error.strerror}.")) from None
    pairs = [line.partition("\t") for line in lines if line.strip()]
    if not pairs:
        raise InputError(Message(Option(what), f": {path}: the file is empty."))
    return [(source, target) for source, _, target in pairs]


def frame_samples(languages: Languages | None, language_pair: LanguagePair) -> Framing:
    """The ids of languages around a source text; those of the target only if they go there.

    Raises:
        ConfigError: a language is unknown to the model, or required and missing.
    """
    if (
        language_pair.target is None
        and languages is not None
        and languages.target_place != "source"
    ):
        languages = replace(languages, target_place=None, target=None)
    tokens = find_language_tokens(languages, language_pair, ())
    if tokens.problems:
        raise ConfigError(join_problems("samples", tokens.problems))
    return tokens.framing


def _read_rows(path: Path, encode: Callable[[str], list[int]]) -> tuple[tuple[int, ...], ...]:
    """The first rows of a file's lines; all lines are checked."""
    rows = []
    for number, (text, _) in enumerate(read_pairs(path, "samples"), start=1):
        try:
            rows.append(tuple(encode(text)))
        except InputError as error:
            raise InputError(Message(f"{path}:{number}: ", error.message)) from None
    return tuple([row for row in rows if row][:MOST_ROWS])


def _first_ids(rows: Sequence[Row]) -> tuple[tuple[int, ...], ...]:
    ids = (tuple(unmasked_ids(row)) for row in rows)
    return tuple([row for row in ids if row][:MOST_ROWS])


def _ids(text: str, reason: str) -> list[int]:
    try:
        return [int(word) for word in text.split()]
    except ValueError:
        raise InputError(f"{shown(text)}: not ids, but {reason}.") from None


def _sentences(codec: TextCodec, manifest: Manifest) -> Iterator[Sequence[int]]:
    """The ids of the sentences that the vocabulary covers."""
    for text in _SENTENCES:
        try:
            row: Any = codec.encode(text)
        except (InputError, TokenizerError, MissingDependencyError):
            continue
        if row and manifest.special_ids.unk is not None and manifest.special_ids.unk not in row:
            yield row
