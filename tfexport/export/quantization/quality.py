"""The quality check: the comparison of a quantised bundle with its original on samples."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from tfexport.bundle import Manifest
from tfexport.errors import (
    ConfigError,
    Message,
    Option,
    Problem,
    join_problems,
    missing_dependency,
)
from tfexport.export.quantization.samples import Sample, built_in_samples, read_samples
from tfexport.export.quantization.word_errors import word_error_rate
from tfexport.runtime import Translator
from tfexport.runtime.model.interface import Floats, Model
from tfexport.runtime.model.open_model import open_model
from tfexport.runtime.search.logits import log_normalizer
from tfexport.runtime.text.codec import NO_LANGUAGES, LanguagePair

LEAST_AGREEMENT = 0.97
# Where words are counted, or with built-in samples, which may be of another language or kind than
# what the model was trained on: there most of what differs is a choice between near ties.
LENIENT_AGREEMENT = 0.9
MOST_BLEU_LOSS = 0.3
MOST_WORD_LOSS = 0.005  # more words that are wrong, for each word of the references
MOST_BUILT_IN_WORD_LOSS = 0.02  # four of 204 words: one or two change by chance
# Beyond it the original does not read the built-in sounds, which are English.
MOST_BUILT_IN_ERRORS = 0.5
BATCH = 32
LIMIT = 256  # tokens of a sample at most
FEW_FILES = 4  # for each parameter


@dataclass(frozen=True)
class Quality:
    """The quality of a quantised bundle.

    Attributes:
        samples: number of samples.
        tokens: number of positions that were compared.
        agreement: share of positions at which the quantised model, given the original's tokens so
            far, predicts the original's next token; the end token counts as one.
        bleu: BLEU of the quantised bundle's translations of texts; None without references.
        bleu_loss: the original's BLEU minus ``bleu``; None without references.
        word_errors: of the quantised bundle's texts of sounds or pictures, for each word of the
            references; None without references.
        word_loss: ``word_errors`` minus those of the original; None without references.
        built_in: whether the samples are the built-in ones; see ``built_in_samples``.
    """

    samples: int
    tokens: int
    agreement: float
    bleu: float | None = None
    bleu_loss: float | None = None
    word_errors: float | None = None
    word_loss: float | None = None
    built_in: bool = False

    @property
    def least_agreement(self) -> float:
        """The least agreement to pass."""
        counted = self.word_loss is not None or self.built_in
        return LENIENT_AGREEMENT if counted else LEAST_AGREEMENT

    @property
    def most_word_loss(self) -> float:
        """The most lost words to pass, for each word of the references."""
        return MOST_BUILT_IN_WORD_LOSS if self.built_in else MOST_WORD_LOSS

    @property
    def passed(self) -> bool:
        """Whether agreement, BLEU loss and lost words are within the limits."""
        return (
            self.agreement >= self.least_agreement
            and (self.bleu_loss or 0.0) <= MOST_BLEU_LOSS
            and (self.word_loss or 0.0) <= self.most_word_loss
        )

    @property
    def limits(self) -> str:
        """The limits of the check that was made, as a part of a sentence."""
        text = f"at least {self.least_agreement:.0%}"
        if self.bleu_loss is not None:
            text += f" and a loss of at most {MOST_BLEU_LOSS} BLEU"
        if self.word_loss is not None:
            text += f" and at most {100 * self.most_word_loss:g} points more word errors"
        return text

    def __str__(self) -> str:
        """Agreement, and BLEU or word errors, as one line."""
        text = f"{self.agreement:.2%} of {self.tokens} tokens agree"
        if self.bleu_loss is not None:
            text += f", BLEU {self.bleu:.2f} (loss {self.bleu_loss:+.2f})"
        if self.word_loss is not None:
            text += f", {self.word_errors:.1%} word errors ({100 * self.word_loss:+.1f} points)"
        return f"{text}, of built-in samples" if self.built_in else text

    def to_dict(self) -> dict[str, Any]:
        """The figures as JSON values, for the manifest."""
        return {**asdict(self), "passed": self.passed}


class QualityCheck:
    """Compares quantised models with the original's output on samples.

    Raises:
        MissingDependencyError: there are references of texts, and sacrebleu is not installed.
    """

    def __init__(
        self,
        original: Translator,
        samples: Sequence[Sample],
        language_pair: LanguagePair = NO_LANGUAGES,
        *,
        built_in: bool = False,
    ) -> None:
        self._original, self._language_pair = original, language_pair
        self._built_in = built_in
        self.samples = [sample for sample in samples if sample.ids or sample.inputs]
        self._referenced = [each for each in self.samples if each.reference is not None]
        if self._referenced and original.manifest.media is None:
            _sacrebleu()  # raises early if it is missing
        limit = self._original.manifest.limits.max_target_length
        length = LIMIT if limit is None else min(LIMIT, limit - 1)
        engine = original.engine
        languages = original.manifest.languages
        place = None if languages is None else languages.target_place
        target = language_pair.target if place in ("first", "start") else None
        keywords: dict[str, Any] = {"max_length": length, "return_end_token": True}
        # A language that decoding starts with is forced, so it does not count as agreement.
        self._forced = int(target is not None and place == "first")
        if not self._forced:
            keywords["first_token"] = None
        # Always greedily: tokens that the bundle's defaults force are no predictions.
        resolved, _ = engine.resolver.resolve(
            keywords, language_pair=LanguagePair(target=target, as_ids=True), own_defaults=False
        )
        self._start = resolved.bos_id
        self._requests = [
            engine.request(sample.ids, i, (), resolved, as_ids=True)
            if sample.inputs is None
            else engine.request_from(sample.inputs, i, (), resolved)
            for i, sample in enumerate(self.samples)
        ]
        found = engine.decode(self._requests, resolved)
        self._targets = [hypotheses[0].tokens for hypotheses in found]

    def agreement(self, folder: Path, manifest: Manifest) -> tuple[float, int]:
        """The share of agreeing positions, and the number of positions."""
        agreeing = total = 0
        for logits, targets in self._logits(open_model(folder, manifest)):
            for row, target in zip(logits.argmax(-1), targets, strict=True):
                made = row[self._forced : len(target)]
                agreeing += int((made == target[self._forced :]).sum())
                total += len(target) - self._forced
        return agreeing / max(1, total), total

    def distance(self, folder: Path, manifest: Manifest) -> float:
        """Mean Kullback-Leibler divergence from the original's predictions; first samples only."""
        quantized = self._logits(open_model(folder, manifest), self._first)
        sums, tokens = 0.0, 0
        for (theirs, targets), (ours, _) in zip(self._first_logits, quantized, strict=True):
            for one, two, target in zip(theirs, ours, targets, strict=True):
                p = one[: len(target)] - log_normalizer(one[: len(target)])[:, None]
                q = two[: len(target)] - log_normalizer(two[: len(target)])[:, None]
                sums += float((np.exp(p) * (p - q)).sum())
                tokens += len(target)
        return sums / max(1, tokens)

    @cached_property
    def _first_logits(self) -> list[tuple[Floats, list[list[int]]]]:
        """The original's logits on the first samples, which every parameter is compared with."""
        model = open_model(self._original.path, self._original.manifest)
        return list(self._logits(model, self._first))

    @property
    def _first(self) -> int:
        """Of how many samples each parameter is measured."""
        return BATCH if self._original.manifest.media is None else FEW_FILES

    @cached_property
    def _original_score(self) -> float:
        return self._score(self._original)

    def _score(self, translator: Translator) -> float:
        """BLEU of a bundle's texts, or their word errors if it reads sound or pictures."""
        references = [sample.reference or "" for sample in self._referenced]
        texts = self._texts(translator)
        if translator.manifest.media is not None:
            return word_error_rate(texts, references)
        score: float = _sacrebleu().corpus_bleu(texts, [references]).score
        return score

    def _texts(self, translator: Translator) -> list[str]:
        """A bundle's texts of the samples that have a reference, as it decodes by default."""
        media, files = translator.manifest.media, [sample.file for sample in self._referenced]
        if translator.manifest.speech is not None:
            return [found.text.strip() for found in translator.transcribe(files)]
        if media is not None:
            made = translator.generate_from([{media: file} for file in files])
        else:
            made = translator.translate(
                [sample.text or "" for sample in self._referenced],
                source_language=self._language_pair.source,
                target_language=self._language_pair.target,
            )
        return [result.text or "" for result in made]

    def _logits(
        self, model: Model, count: int | None = None
    ) -> Iterator[tuple[Floats, list[list[int]]]]:
        # In batches, since the logits of all samples may not fit into memory.
        for indices in self._batches(len(self.samples) if count is None else count):
            batch = [request.source for i in indices if (request := self._requests[i])]
            targets = [self._targets[i] for i in indices]
            longest = max(1, *(len(target) for target in targets))
            given = np.full((len(batch), longest), self._start, np.int64)
            for row, target in enumerate(targets):
                given[row, 1 : len(target)] = target[:-1]
            yield model.step(given, model.encode(batch)), targets

    def _batches(self, count: int) -> Iterator[list[int]]:
        """The first ``count`` samples, those of one batch in a group; see ``Request.group``."""
        groups: dict[object, list[int]] = {}
        for i, request in enumerate(self._requests[:count]):
            if request is not None:
                groups.setdefault(request.group, []).append(i)
        for indices in groups.values():
            yield from (indices[i : i + BATCH] for i in range(0, len(indices), BATCH))

    def judge(self, folder: Path, manifest: Manifest) -> Quality:
        """Compare one quantised bundle with the original."""
        agreement, tokens = self.agreement(folder, manifest)
        quality = Quality(len(self.samples), tokens, agreement, built_in=self._built_in)
        if not self._referenced:
            return quality
        if self._built_in and self._original_score > MOST_BUILT_IN_ERRORS:
            return quality
        score = self._score(Translator(folder))
        if manifest.media is not None:
            loss = score - self._original_score
            return replace(quality, word_errors=score, word_loss=loss)
        return replace(quality, bleu=score, bleu_loss=self._original_score - score)


def require_samples(subject: str, languages: Mapping[str, str | None]) -> None:
    """Refuse languages without samples.

    Args:
        subject: the start of the message.
        languages: option to the given code.

    Raises:
        ConfigError: languages are given; the message lists them.
    """
    problems = [
        Problem(name, Message("is of the samples; name them with ", Option("samples")))
        for name, code in languages.items()
        if code is not None
    ]
    if problems:
        raise ConfigError(join_problems(subject, problems))


def open_quality_check(
    translator: Translator, path: Path | None, language_pair: LanguagePair = NO_LANGUAGES
) -> QualityCheck | None:
    """The quality check of a file of samples, or of built-in ones.

    Args:
        translator: the original.
        path: see ``read_samples``; None for ``built_in_samples``.
        language_pair: of the samples in the file, and of their references.

    Returns:
        None if there are no samples.
    """
    if path is None:
        built_in = built_in_samples(translator)
        return QualityCheck(translator, built_in, built_in=True) if built_in else None
    return QualityCheck(translator, read_samples(path, translator, language_pair), language_pair)


def _sacrebleu() -> ModuleType:
    try:
        import sacrebleu
    except ImportError as error:
        need = "samples with references need sacrebleu, which is not installed"
        raise missing_dependency(need, extra="quantize") from error
    return sacrebleu
