"""Samples by which the quality of quantised weights is measured: those of a file, or built in."""

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfexport.errors import InputError, Message, MissingDependencyError
from tfexport.export.quantization.built_in import built_in_pictures, built_in_sounds
from tfexport.runtime import Translator
from tfexport.runtime.files.array_rows import SUFFIX, read_rows_of
from tfexport.runtime.files.input_lines import read_line, read_numbers
from tfexport.runtime.text.codec import NO_LANGUAGES, LanguagePair

MOST_FILES = 256  # in all, since their inputs are kept


@dataclass(frozen=True)
class Sample:
    """One source as ids; also as text, and with a reference translation, if these are known.

    Attributes:
        ids: the ids that the encoder gets; empty if there are ``inputs``.
        text: the text of the ids.
        reference: the reference translation.
        inputs: the inputs of a custom module, by name.
        file: the sound or the picture that ``inputs`` were made of, as ``generate_from`` takes it.
    """

    ids: list[int]
    text: str | None = None
    reference: str | None = None
    inputs: Mapping[str, Any] | None = None
    file: Any = None


def read_samples(
    path: Path, translator: Translator, language_pair: LanguagePair = NO_LANGUAGES
) -> list[Sample]:
    """Read samples: one text a line, with a tab and a reference translation if there is one.

    Of a bundle that reads sound or pictures, a line names a file in the text's place. If the bundle
    holds no tokenizer, lines are ids. An ``.npz`` holds rows of the encoder's inputs.

    Raises:
        ConfigError: a language is unknown to the model, or required and missing.
        InputError: a line is invalid; the message names it. Of an ``.npz`` it names every problem.
    """
    if path.suffix == SUFFIX:
        pair = language_pair._replace(as_ids=True)
        translator.engine.resolver.resolve({}, language_pair=pair, own_defaults=False)
        return [Sample([], inputs=row) for row in read_rows_of(path, translator.manifest)]
    if translator.manifest.media is not None:
        return _read_files(path, translator, translator.manifest.media)
    as_ids = language_pair == NO_LANGUAGES and not translator.manifest.tokenizers
    options, _ = translator.engine.resolver.resolve(
        {}, language_pair=LanguagePair(as_ids=True) if as_ids else language_pair, own_defaults=False
    )
    samples = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            text, _, reference = read_line(line, first=number == 1).partition("\t")
            if not translator.manifest.tokenizers:
                samples.append(Sample(translator.texts.check_ids(read_numbers(text))))
            else:
                ids = translator.texts.encode(text, framing=options.framing)
                samples.append(Sample(ids, text, reference or None))
        except InputError as error:
            raise InputError(Message(f"{path}:{number}: ", error.message)) from None
    if not any(sample.ids for sample in samples):
        raise InputError(f"{path}: holds no sample.")
    return samples


def _read_files(path: Path, translator: Translator, media: str) -> list[Sample]:
    """Samples that are files, which are read here once, so that a bad one is named by its line."""
    samples = list[Sample]()
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            name, _, reference = read_line(line, first=number == 1).partition("\t")
            if not name.strip():
                continue
            if len(samples) == MOST_FILES:
                raise InputError(f"more than {MOST_FILES} files: their inputs are kept in memory")
            if reference and not translator.engine.gives_text:
                raise InputError("has a reference, but the bundle holds no tokenizer")
            name = name.strip()
            inputs = translator.engine.files.prepare({media: name})
            samples.append(Sample([], None, reference or None, inputs, name))
        except InputError as error:
            raise InputError(Message(f"{path}:{number}: ", error.message)) from None
    if not samples:
        raise InputError(f"{path}: holds no sample.")
    return samples


_BUILT_IN: Mapping[str, Callable[[], Iterable[tuple[Any, str | None]]]] = {
    "audio": built_in_sounds,
    "image": built_in_pictures,
}


def built_in_samples(translator: Translator) -> list[Sample]:
    """Samples for a bundle that reads sound or pictures; none for one of texts or ids.

    Those that the model does not take, such as sounds beyond its window, are left out; where the
    library that reads them is not installed, there are none.
    """
    media, samples = translator.manifest.media, list[Sample]()
    if media is None:
        return samples
    try:
        for file, text in _BUILT_IN[media]():
            with contextlib.suppress(InputError):
                inputs = translator.engine.files.prepare({media: file})
                reference = text if translator.engine.gives_text else None
                samples.append(Sample([], None, reference, inputs, file))
    except MissingDependencyError:
        return []
    return samples
