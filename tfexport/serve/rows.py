"""The rows of texts for a model, and the texts of their hypotheses."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tfexport.errors import InputError, Problem, TooLongError
from tfexport.markup.document import (
    PLAIN,
    Document,
    Markup,
    Row,
    has_words,
    read_row,
    unmet_as_it_is,
)
from tfexport.runtime.resolve import Prefix
from tfexport.runtime.results import Hypothesis, Term, TranslationResult
from tfexport.runtime.search import Request, ResolvedOptions
from tfexport.runtime.streaming import streamed, unstreamable
from tfexport.runtime.terms import Terms
from tfexport.runtime.text.codec import NO_LANGUAGES, LanguagePair, check_text
from tfexport.runtime.text.sentences import Join, Split, SplitText, split_text
from tfexport.serve.failures import spelled, wrong
from tfexport.serve.models import Model

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
        markup: what the texts are made of.
        terms: of all texts.
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
    markup: Markup = PLAIN
    terms: Terms | None = None

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
        documents: of each text with markup; empty for plain texts.
        attention: whether the caller gets the attention.
        terms: of all rows.
    """

    options: ResolvedOptions
    requests: list[Request | None]
    split_texts: list[SplitText]
    unknown: list[int] = field(default_factory=list)
    documents: list[Document] = field(default_factory=list)
    attention: bool = True
    terms: Terms | None = None


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
        unmet: terms of the text that the best translation does not meet.
        kept: how many of its sentences stay as they are in it, since no translation has their
            placeholders.
    """

    made: list[Made]
    sentences: list[TranslationResult]
    unknown: int = 0
    unmet: tuple[Term, ...] = ()
    kept: int = 0


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
    documents = _documents(model, asked)
    plain = [] if documents else asked.texts
    split_texts = [split_text(text, asked.language, split, join) for text in plain]
    given: Mapping[str, Any] = asked.options
    attention = bool(given.get("return_attention"))
    if any(document.aligned for document in documents):
        given = {**given, "return_attention": True}
    problems = list[Problem]()
    if asked.stream:
        given, problems = streamed(given), unstreamable(given)
    own = asked.prefixes if asked.prefixes is not None else [None] * len(asked.texts)
    options, ids = model.resolver.resolve(given, own, problems, asked.language_pair)
    options = model.within_limits(options, asked.options)
    encoded: dict[str, list[int]] = {}
    if documents:
        split_texts = [_cut(model, document, asked, options, split, join) for document in documents]
    elif split != "none":
        if asked.divide:
            split_texts = [_divided(model, parts, options, encoded) for parts in split_texts]
        languages = model.engine.manifest.languages
        if languages is not None and languages.target_place == "source":
            split_texts = list(map(_marked, split_texts))
    optional = [flag for document in documents for flag in document.optional]
    requests, unknown = _requests(model, asked, split_texts, ids, options, encoded, optional)
    if documents:
        worded = [flag for document in documents for flag in document.worded]
        requests = [one if flag else None for one, flag in zip(requests, worded, strict=True)]
    else:  # of documents, the rows that are used are counted, by ``assemble``
        model.observer.unknown(sum(unknown))
    model.check_lengths(requests)
    return Rows(options, requests, split_texts, unknown, documents, attention, asked.terms)


def assemble(model: Model, rows: Rows, found: Sequence[list[Hypothesis]]) -> list[Translated]:
    """Make texts of the hypotheses of rows."""
    results = zip(rows.requests, rows.unknown, found, strict=True)
    documents = iter(rows.documents)
    made, cut = [], 0
    for parts in rows.split_texts:
        sentences, kept, unknown = list[TranslationResult](), list[bool](), list[int]()
        for sentence in parts.sentences:
            request, foreign, hypotheses = next(results)
            unknown.append(foreign)
            kept.append(request is None)
            ids = request.ids if request else []
            result = model.engine.result(
                sentence, ids, hypotheses, rows.options, terms=rows.terms if request else None
            )
            if request is None:  # unchanged if there is nothing to translate
                result = replace(
                    result, text=sentence, texts=[sentence] * len(result.texts),
                    unmet_terms=unmet_as_it_is(rows.terms, sentence),
                )  # fmt: skip
            sentences.append(result)
        document, lost = next(documents, None), 0
        if document is None:
            texts = _joined(parts, sentences, kept)
        else:
            chosen, texts, lost = _written(model, document, parts, rows, sentences, kept)
            sentences, unknown = [sentences[i] for i in chosen], [unknown[i] for i in chosen]
            model.observer.unknown(sum(unknown))
            if not rows.attention:
                sentences = list(map(_without_attention, sentences))
        cut += sum(not result.hypotheses[0].finished for result in sentences)
        unmet = tuple(term for result in sentences for term in result.unmet_terms)
        made.append(Translated(texts, sentences, sum(unknown), unmet, lost))
    model.observer.cut(cut)
    return made


def _without_attention(result: TranslationResult) -> TranslationResult:
    return replace(result, hypotheses=[replace(one, attention=None) for one in result.hypotheses])


def _written(
    model: Model,
    document: Document,
    parts: SplitText,
    rows: Rows,
    sentences: Sequence[TranslationResult],
    kept: Sequence[bool],
) -> tuple[list[int], list[Made], int]:
    """The rows of a document that are used, its translations, and what the best of them keeps."""
    best, made, lost = list[int](), list[Made](), 0
    texts, filled = model.engine.texts, rows.options.replace_unknowns
    for rank in range(max((len(result.hypotheses) for result in sentences), default=1)):
        found = [
            Row(sentence, kept=True) if own else read_row(texts, result, sentence, rank, filled)
            for sentence, result, own in zip(parts.sentences, sentences, kept, strict=True)
        ]
        choice = document.choose(found)
        chosen = choice.numbers
        if not rank:
            best, lost = chosen, len(choice.lost)
        used = [sentences[i] for i in chosen]
        hypotheses = [one.hypotheses[min(rank, len(one.hypotheses) - 1)] for one in used]
        made.append(_made(document.write(found, choice), hypotheses))
    return best, made, lost


def _documents(model: Model, asked: Asked) -> list[Document]:
    """The markup of all texts; none of plain texts."""
    if not asked.markup:
        return []
    documents, problems = [], []
    for number, text in enumerate(asked.texts):
        try:
            documents.append(asked.markup.read(text))
        except InputError as error:
            problems.append(f"text {asked.place(number)}: {error}")
    if problems:
        raise wrong(problems)
    if model.engine.manifest.attention_shape is None:
        check_alignable(documents, asked)
    return documents


def check_alignable(documents: Sequence[Document], asked: Asked) -> None:
    """Refuse markup in sentences, for a model that gives no attention.

    Raises:
        RequestError: naming the texts.
    """
    problems = [
        f"text {asked.place(number)}: has tags or placeholders in its sentences, which are placed "
        "by attention, and the bundle of this custom module gives none; send its sentences without"
        for number, document in enumerate(documents)
        if document.aligned
    ]
    if problems:
        raise wrong(problems)


def _cut(
    model: Model,
    document: Document,
    asked: Asked,
    options: ResolvedOptions,
    split: Split,
    join: Join,
) -> SplitText:
    """Cut a document into sentences; they are the rows of its text."""

    def sentences(text: str) -> SplitText:
        found = split_text(text, asked.language, split, join)
        return _divided(model, found, options, {}) if asked.divide else found

    document.cut(sentences)
    rows = document.sentences
    return SplitText(rows, [""] * (len(rows) + 1), join)


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
    optional: Sequence[bool] = (),
) -> tuple[list[Request | None], list[int]]:
    """The requests of all rows, and how many tokens of each are unknown.

    The prefix of each text goes to its first sentence. Sentences without words have no request,
    and neither have optional ones that are too long.
    """
    requests = list[Request | None]()
    unknown, problems = list[int](), []
    unk, split = model.engine.manifest.special_ids.unk, asked.split or model.split
    for number, parts in enumerate(split_texts):
        for place, sentence in enumerate(parts.sentences):
            prefix = () if place else prefixes[number]
            try:
                required = model.engine.required(sentence, asked.terms, options)
                source = encoded.get(sentence, sentence) if asked.terms is None else sentence
                request = model.engine.request(
                    source, len(requests), prefix, options, as_ids=source is not sentence,
                    required=required,
                )  # fmt: skip
            except InputError as error:
                text = _too_long(error) if asked.divide else spelled(error)
                if not (optional and optional[len(requests)]):
                    problems.append(f"text {asked.place(number)}: {text}")
                request = None
            unknown.append(request.ids.count(unk) if request and unk is not None else 0)
            if (
                request
                and (split != "none" or asked.markup)
                and not prefix
                and not has_words(sentence, request.ids, model.wordless, model.engine.texts)
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


def _joined(
    parts: SplitText, sentences: Sequence[TranslationResult], kept: Sequence[bool]
) -> list[Made]:
    if not sentences:
        return [_made(parts.joined([]), [])]
    most = max(len(result.hypotheses) for result in sentences)
    return [_choose(parts, sentences, kept, place) for place in range(most)]


def _choose(
    parts: SplitText, sentences: Sequence[TranslationResult], kept: Sequence[bool], place: int
) -> Made:
    """The hypotheses of one rank; sentences that have fewer give their last one."""
    texts, chosen = list[str](), list[Hypothesis]()
    for result in sentences:
        index = min(place, len(result.hypotheses) - 1)
        texts.append(result.texts[index])
        chosen.append(result.hypotheses[index])
    return _made(parts.joined(texts, kept), chosen)


def _made(text: str, chosen: Sequence[Hypothesis]) -> Made:
    """A translation of the hypotheses of its sentences."""
    if not chosen:
        return Made(text, [], 0.0, None)
    scores = [one.token_scores for one in chosen]
    return Made(
        text,
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
