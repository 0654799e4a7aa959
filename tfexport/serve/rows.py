"""The rows of texts for a model, and the texts of their hypotheses."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
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
from tfexport.runtime.text.codec import check_text
from tfexport.runtime.text.sentences import Join, Split, SplitText, split_text
from tfexport.serve.failures import spelled, wrong
from tfexport.serve.models import ModelChoice, ServerModel

_TOKEN = 32  # characters of a token at most, as a rule
_MARK = re.compile(r">>[^<>\s]+<<\s*")  # of the target language, in front of a text


@dataclass(frozen=True)
class TextRequest:
    """The texts of a request, and how they are translated.

    Attributes:
        texts: in the order of the results.
        options: the options of decoding, by name.
        prefixes: the start of each translation; None for none.
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
class TextRows:
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
class TextTranslation:
    """The translation of a text, and those after the best.

    Attributes:
        texts: best first, with the white space of the source around their sentences.
        hypotheses: of each of ``texts``, see ``_whole``.
        sentences: the results that it is made of.
        unknown: tokens of the text that the model does not know.
        unmet: terms of the text that the best translation does not meet.
        kept: how many of its sentences stay as they are in it, since no translation has their
            placeholders.
        source: code of the text's language, of a request that names languages; else empty.
        confidence: confidence in ``source``, from 0 to 1; 1 if the caller named it.
    """

    texts: list[str]
    hypotheses: list[Hypothesis]
    sentences: list[TranslationResult]
    unknown: int = 0
    unmet: tuple[Term, ...] = ()
    kept: int = 0
    source: str = ""
    confidence: float = 1.0


def prepare(choice: ModelChoice, request: TextRequest) -> TextRows:
    """Split and tokenize texts.

    Raises:
        ConfigError: options are wrong.
        InputError: a text cannot be decoded.
        RequestError: the call is wrong for this server.
    """
    model, language = choice.model, choice.source
    _check_texts(request)
    split = request.split or model.split
    join = model.join(choice.target)
    documents = _documents(model, request)
    plain = [] if documents else request.texts
    split_texts = [split_text(text, language, split, join) for text in plain]
    given: Mapping[str, Any] = request.options
    attention = bool(given.get("return_attention"))
    if any(document.aligned for document in documents):
        given = {**given, "return_attention": True}
    problems = list[Problem]()
    if request.stream:
        given, problems = streamed(given), unstreamable(given)
    prefixes = request.prefixes if request.prefixes is not None else [None] * len(request.texts)
    options, ids = model.resolver.resolve(given, prefixes, problems, choice.language_pair)
    options = model.within_limits(options, request.options)
    encoded: dict[str, list[int]] = {}
    if documents:

        def cut(text: str) -> SplitText:
            parts = split_text(text, language, split, join)
            return _divided(model, parts, options, {}) if request.divide else parts

        split_texts = [_cut(document, cut, join) for document in documents]
    elif split != "none":
        if request.divide:
            split_texts = [_divided(model, parts, options, encoded) for parts in split_texts]
        languages = model.engine.manifest.languages
        if languages is not None and languages.target_place == "source":
            split_texts = list(map(_marked, split_texts))
    forms = [form for document in documents for form in document.forms]
    optional = [form.optional for form in forms]
    requests, unknown = _requests(model, request, split_texts, ids, options, encoded, optional)
    if documents:
        requests = [one if form.worded else None for one, form in zip(requests, forms, strict=True)]
    else:  # of documents, the rows that are used are counted, by ``assemble``
        model.observer.unknown(sum(unknown))
    model.check_lengths(requests)
    return TextRows(options, requests, split_texts, unknown, documents, attention, request.terms)


def assemble(
    model: ServerModel, rows: TextRows, found: Sequence[list[Hypothesis]]
) -> list[TextTranslation]:
    """Make texts of the hypotheses of rows."""
    results = zip(rows.requests, rows.unknown, found, strict=True)
    documents = iter(rows.documents)
    translations, cut = list[TextTranslation](), 0
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
            ranked = _joined(parts, sentences, kept)
        else:
            chosen, ranked, lost = _written(model, document, parts, rows, sentences, kept)
            sentences, unknown = [sentences[i] for i in chosen], [unknown[i] for i in chosen]
            model.observer.unknown(sum(unknown))
            if not rows.attention:
                sentences = list(map(_without_attention, sentences))
        cut += sum(not result.hypotheses[0].finished for result in sentences)
        unmet = tuple(term for result in sentences for term in result.unmet_terms)
        texts, wholes = (list(values) for values in zip(*ranked, strict=True))
        translations.append(TextTranslation(texts, wholes, sentences, sum(unknown), unmet, lost))
    model.observer.cut(cut)
    return translations


def _without_attention(result: TranslationResult) -> TranslationResult:
    return replace(result, hypotheses=[replace(one, attention=None) for one in result.hypotheses])


def _written(
    model: ServerModel,
    document: Document,
    parts: SplitText,
    rows: TextRows,
    sentences: Sequence[TranslationResult],
    kept: Sequence[bool],
) -> tuple[list[int], list[tuple[str, Hypothesis]], int]:
    """The rows of a document that are used, its translations, and what the best of them keeps."""
    best, ranked, lost = list[int](), list[tuple[str, Hypothesis]](), 0
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
        ranked.append((document.write(found, choice), _whole(hypotheses)))
    return best, ranked, lost


def _documents(model: ServerModel, request: TextRequest) -> list[Document]:
    """The markup of all texts; none of plain texts."""
    if not request.markup:
        return []
    documents, problems = [], []
    for number, text in enumerate(request.texts):
        try:
            documents.append(request.markup.read(text))
        except InputError as error:
            problems.append(f"text {request.place(number)}: {error}")
    if problems:
        raise wrong(problems)
    if model.engine.manifest.attention_shape is None:
        check_alignable(documents, request)
    return documents


def check_alignable(documents: Sequence[Document], request: TextRequest) -> None:
    """Refuse markup in sentences, for a model that gives no attention.

    Raises:
        RequestError: naming the texts.
    """
    problems = [
        f"text {request.place(number)}: has tags or placeholders in its sentences, which are "
        "placed by attention, and the bundle of this custom module gives none; send its sentences "
        "without"
        for number, document in enumerate(documents)
        if document.aligned
    ]
    if problems:
        raise wrong(problems)


def _cut(document: Document, cut: Callable[[str], SplitText], join: Join) -> SplitText:
    """Cut a document into sentences; they are the rows of its text."""
    document.cut(cut)
    rows = document.sentences
    return SplitText(rows, [""] * (len(rows) + 1), join)


def _check_texts(request: TextRequest) -> None:
    problems = []
    for number, text in enumerate(request.texts):
        try:
            check_text(text)
        except InputError as error:
            problems.append(f"text {request.place(number)}: {error}")
    if problems:
        raise wrong(problems)


def _divided(
    model: ServerModel, parts: SplitText, options: ResolvedOptions, encoded: dict[str, list[int]]
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
    model: ServerModel,
    text_request: TextRequest,
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
    unk, split = model.engine.manifest.special_ids.unk, text_request.split or model.split
    for number, parts in enumerate(split_texts):
        for place, sentence in enumerate(parts.sentences):
            prefix = () if place else prefixes[number]
            try:
                required = model.engine.required(sentence, text_request.terms, options)
                source = encoded.get(sentence, sentence) if text_request.terms is None else sentence
                request = model.engine.request(
                    source, len(requests), prefix, options, as_ids=source is not sentence,
                    required=required,
                )  # fmt: skip
            except InputError as error:
                text = _too_long(error) if text_request.divide else spelled(error)
                if not (optional and optional[len(requests)]):
                    problems.append(f"text {text_request.place(number)}: {text}")
                request = None
            unknown.append(request.ids.count(unk) if request and unk is not None else 0)
            if (
                request
                and (split != "none" or text_request.markup)
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
) -> list[tuple[str, Hypothesis]]:
    """The translations of a text, best first, each with its hypothesis."""
    if not sentences:
        return [(parts.joined([]), _whole([]))]
    most = max(len(result.hypotheses) for result in sentences)
    return [_choose(parts, sentences, kept, place) for place in range(most)]


def _choose(
    parts: SplitText, sentences: Sequence[TranslationResult], kept: Sequence[bool], place: int
) -> tuple[str, Hypothesis]:
    """The translation of one rank; sentences that have fewer give their last one."""
    texts, chosen = list[str](), list[Hypothesis]()
    for result in sentences:
        index = min(place, len(result.hypotheses) - 1)
        texts.append(result.texts[index])
        chosen.append(result.hypotheses[index])
    return parts.joined(texts, kept), _whole(chosen)


def _whole(chosen: Sequence[Hypothesis]) -> Hypothesis:
    """The hypothesis of a text: the tokens of all sentences, and the mean of their scores.

    The mean is weighted by tokens. It is finished if all of them are, and has no attention.
    """
    if not chosen:
        return Hypothesis([], 0.0)
    scores = [one.token_scores for one in chosen]
    return Hypothesis(
        [token for one in chosen for token in one.tokens],
        _mean_score(chosen),
        token_scores=None
        if None in scores
        else [value for values in scores for value in values or []],
        finished=all(one.finished for one in chosen),
    )


def _mean_score(chosen: Sequence[Hypothesis]) -> float:
    if len(chosen) == 1:
        return chosen[0].score
    weights = [len(one.tokens) + 1 for one in chosen]  # with the end token
    return math.fsum(one.score * n for one, n in zip(chosen, weights, strict=True)) / sum(weights)
