"""Translation of the texts of a request: texts to rows, rows to hypotheses, hypotheses to texts."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tfexport.errors import InputError, Problem, TooLongError
from tfexport.runtime.language_tokens import NO_LANGUAGES, LanguagePair
from tfexport.runtime.options import Step
from tfexport.runtime.resolve import Prefix
from tfexport.runtime.results import Hypothesis, TranslationResult
from tfexport.runtime.scheduler import Submission
from tfexport.runtime.search import Request, ResolvedOptions
from tfexport.runtime.streaming import streamed, unstreamable
from tfexport.runtime.text.codec import WORD_MARKS, check_text
from tfexport.serve.failures import spelled, wrong
from tfexport.serve.models import Model
from tfexport.serve.row_limits import check_lengths, within_limits
from tfexport.serve.sentences import Split, SplitText, split_text

OnStep = Callable[[Step], object]
_TOKEN = 32  # characters of a token at most, as a rule
_MARK = re.compile(r">>[^<>\s]+<<\s*")  # of the target language, in front of a text


@dataclass(frozen=True)
class Asked:
    """The texts of a request, and their options.

    Attributes:
        texts: in the order of the results.
        options: the options of decoding, by name.
        prefixes: the start of each translation; None for none.
        language_pair: the language tokens for the model.
        language: code of the texts' language, for splitting; empty if unknown.
        target: code of the translations' language, for joining; empty if unknown.
        split: how texts are split, see ``split_text``; None for the model's default.
        divide: whether sentences that are too long for the model are divided, because the protocol
            has no option for them.
        indices: index of each text in the request, for messages; None for all in order.
        stream: whether tokens are streamed.
    """

    texts: Sequence[str]
    options: Mapping[str, Any] = field(default_factory=dict)
    prefixes: Sequence[Prefix] | None = None
    language_pair: LanguagePair = NO_LANGUAGES
    language: str = ""
    target: str = ""
    split: Split | None = None
    divide: bool = False
    indices: Sequence[int] | None = None
    stream: bool = False

    def place(self, number: int) -> int:
        """The index of a text in the request."""
        return number if self.indices is None else self.indices[number]


@dataclass(frozen=True)
class Rows:
    """The rows of a request, which a model decodes.

    Attributes:
        options: the options of all rows.
        requests: one for each row; None if a row has nothing to translate.
        split_texts: one for each text; their sentences, in order, are the rows.
        unknown: tokens of each row that the model does not know.
    """

    options: ResolvedOptions
    requests: list[Request | None]
    split_texts: list[SplitText]
    unknown: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Made:
    """One translation of a text.

    Attributes:
        text: the translation, with the white space of the source around its sentences.
        tokens: the tokens of all sentences.
        score: the score of a single sentence, or the mean of several, weighted by tokens.
        token_scores: the scores of all sentences; None if not requested.
        finished: whether all sentences ended by themselves, not at the longest length.
    """

    text: str
    tokens: list[int]
    score: float
    token_scores: list[float] | None
    finished: bool = True


@dataclass(frozen=True)
class Translated:
    """A text's translations.

    Attributes:
        made: best first.
        sentences: the results that it is made of.
        unknown: tokens of the text that the model does not know.
    """

    made: list[Made]
    sentences: list[TranslationResult]
    unknown: int = 0


def prepare(model: Model, asked: Asked) -> Rows:
    """Split and tokenize texts.

    Raises:
        ConfigError: options are wrong.
        InputError: a text cannot be decoded.
        RequestError: the call is wrong for this server.
    """
    _check_texts(asked)
    split = asked.split or model.split
    join = model.join(asked.target)
    split_texts = [split_text(text, asked.language, split, join) for text in asked.texts]
    given: Mapping[str, Any] = asked.options
    problems = list[Problem]()
    if asked.stream:
        given, problems = streamed(given), unstreamable(given)
    own = asked.prefixes if asked.prefixes is not None else [None] * len(split_texts)
    options, ids = model.resolver.resolve(given, own, problems, asked.language_pair)
    options = within_limits(model, options, asked.options)
    encoded: dict[str, list[int]] = {}
    if split != "none":
        if asked.divide:
            split_texts = [_divided(model, parts, options, encoded) for parts in split_texts]
        if _is_marked(model):
            split_texts = list(map(_marked, split_texts))
    requests, unknown = _requests(model, asked, split_texts, ids, options, encoded)
    model.observer.unknown(sum(unknown))
    check_lengths(model, requests)
    return Rows(options, requests, split_texts, unknown)


def submit(model: Model, rows: Rows, deadline: float, on_step: OnStep | None = None) -> Submission:
    """Hand rows to the model's scheduler.

    Raises:
        QueueFullError: too many requests wait.
    """
    return model.scheduler.submit(rows.requests, rows.options, deadline=deadline, on_step=on_step)


def assemble(model: Model, rows: Rows, found: Sequence[list[Hypothesis]]) -> list[Translated]:
    """Make texts of the hypotheses of rows."""
    results = zip(rows.requests, rows.unknown, found, strict=True)
    made, cut = [], 0
    for parts in rows.split_texts:
        sentences, kept, unknown = list[TranslationResult](), list[bool](), 0
        for sentence in parts.sentences:
            request, foreign, hypotheses = next(results)
            unknown += foreign
            kept.append(request is None)
            cut += not hypotheses[0].finished
            ids = request.ids if request else []
            result = model.engine.result(sentence, ids, hypotheses, rows.options)
            if request is None:  # unchanged if there is nothing to translate
                result = replace(result, text=sentence, texts=[sentence] * len(result.texts))
            sentences.append(result)
        made.append(Translated(_joined(parts, sentences, kept), sentences, unknown))
    model.observer.cut(cut)
    return made


def _check_texts(asked: Asked) -> None:
    problems = []
    for number, text in enumerate(asked.texts):
        try:
            check_text(text)
        except InputError as error:
            problems.append(f"text {asked.place(number)}: {error}")
    if problems:
        raise wrong(problems)


def _divided(
    model: Model, parts: SplitText, options: ResolvedOptions, encoded: dict[str, list[int]]
) -> SplitText:
    """Divide sentences that are too long for the model; ids are added to ``encoded``."""
    longest = model.engine.manifest.limits.max_source_length or model.max_tokens

    def fits(sentence: str) -> bool:
        if len(sentence) > _TOKEN * longest:  # short texts need no check
            return False
        try:
            ids = model.engine.texts.encode(
                sentence, options.truncate, options.max_input_length, options.framing
            )
        except TooLongError:
            return False
        encoded[sentence] = ids
        return len(ids) <= model.max_tokens

    return parts.divided(fits)


def _is_marked(model: Model) -> bool:
    """Whether a text may start with the target language, as ``>>fra<<``."""
    languages = model.engine.manifest.languages
    return languages is not None and languages.target_place == "source"


def _marked(parts: SplitText) -> SplitText:
    """Put the language mark at the start of the text before every sentence."""
    mark = _MARK.match(parts.sentences[0]) if parts.sentences else None
    if mark is None:
        return parts
    first, *others = parts.sentences
    return replace(parts, sentences=[first, *(mark[0] + one for one in others)])


def _requests(
    model: Model,
    asked: Asked,
    split_texts: Sequence[SplitText],
    prefixes: Sequence[tuple[int, ...]],
    options: ResolvedOptions,
    encoded: Mapping[str, list[int]],
) -> tuple[list[Request | None], list[int]]:
    """The requests of all rows, and how many tokens of each are unknown.

    The prefix of each text goes to its first sentence. Sentences without words have no request.
    """
    requests = list[Request | None]()
    unknown, problems = list[int](), []
    unk, split = model.engine.manifest.special_ids.unk, asked.split or model.split
    for number, parts in enumerate(split_texts):
        for place, sentence in enumerate(parts.sentences):
            prefix = () if place else prefixes[number]
            try:
                source = encoded.get(sentence, sentence)
                request = model.engine.request(
                    source, len(requests), prefix, options, as_ids=source is not sentence
                )
            except InputError as error:
                text = _too_long(error) if asked.divide else spelled(error)
                problems.append(f"text {asked.place(number)}: {text}")
                request = None
            unknown.append(request.ids.count(unk) if request and unk is not None else 0)
            if (
                request
                and split != "none"
                and not prefix
                and not _has_words(model, sentence, request)
            ):
                request = None
            requests.append(request)
    if problems:
        raise wrong(problems)
    return requests, unknown


def _too_long(error: InputError) -> str:
    """The message for a protocol without the option ``truncate``."""
    if not isinstance(error, TooLongError):
        return spelled(error)
    return f"{error.found} tokens exceed the model's limit of {error.most}; shorten it"


def _has_words(model: Model, sentence: str, request: Request) -> bool:
    """Whether a sentence has a letter or digit, and a token that the model knows.

    The model's output for any other sentence is arbitrary.
    """
    if not any(map(str.isalnum, sentence)):
        return False
    manifest, source = model.engine.manifest, model.engine.texts.source
    foreign = {*manifest.hidden_ids, manifest.special_ids.unk}
    return any(
        token not in foreign and source.piece(token) not in WORD_MARKS for token in request.ids
    )


def _joined(
    parts: SplitText, sentences: Sequence[TranslationResult], kept: Sequence[bool]
) -> list[Made]:
    if not sentences:
        return [Made(parts.joined([]), [], 0.0, None)]
    most = max(len(result.hypotheses) for result in sentences)
    return [_choose(parts, sentences, kept, place) for place in range(most)]


def _choose(
    parts: SplitText, sentences: Sequence[TranslationResult], kept: Sequence[bool], place: int
) -> Made:
    """The hypotheses of one rank; sentences that have fewer give their last one."""
    indices = [min(place, len(result.hypotheses) - 1) for result in sentences]
    pairs = list(zip(sentences, indices, strict=True))
    chosen = [result.hypotheses[i] for result, i in pairs]
    scores = [one.token_scores for one in chosen]
    return Made(
        parts.joined([result.texts[i] for result, i in pairs], kept),
        [token for one in chosen for token in one.tokens],
        _mean_score(chosen),
        None if None in scores else [value for values in scores for value in values or []],
        all(one.finished for one in chosen),
    )


def _mean_score(chosen: Sequence[Hypothesis]) -> float:
    if len(chosen) == 1:
        return chosen[0].score
    weights = [len(one.tokens) + 1 for one in chosen]  # with the end token
    return math.fsum(one.score * n for one, n in zip(chosen, weights, strict=True)) / sum(weights)
