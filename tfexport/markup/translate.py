"""Translation of texts with markup, by an open bundle."""

import contextlib
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any

from tfexport.errors import ConfigError, InputError, TfexportWarning, TooLongError, join_some
from tfexport.gc_pause import no_collecting
from tfexport.markup.document import (
    Document,
    Markup,
    Row,
    has_words,
    read_row,
    unmet_as_it_is,
)
from tfexport.markup.files import Text
from tfexport.runtime.engine import Engine, Job
from tfexport.runtime.options import TranslationKeywords, naming_options
from tfexport.runtime.parallel.workers import rows_ahead
from tfexport.runtime.resolve import Prefix
from tfexport.runtime.results import Term
from tfexport.runtime.search import Request, ResolvedOptions
from tfexport.runtime.terms import Pair, Terms
from tfexport.runtime.text.codec import LanguagePair, check_rows, check_text
from tfexport.runtime.text.language_codes import ModelLanguages
from tfexport.runtime.text.sentences import Split, SplitText, join_of, split_text
from tfexport.runtime.translator import Translator
from tfexport.typing import Unpack


@dataclass
class Translation:
    """The translations of texts.

    Attributes:
        texts: one for each text.
        sentences: how many sentences were translated.
        unfinished: how many of them were cut at the longest length.
        unknown: tokens that the model does not know, and how many sentences have any.
        unmet: sentences whose translations do not meet terms, with these.
        lost: for each text the sentences that stay as they are, since no translation has their
            placeholders.
        whole: for each text the messages of ICU with words, which are kept as a whole.
    """

    texts: list[str]
    sentences: int = 0
    unfinished: int = 0
    unknown: tuple[int, int] = (0, 0)
    unmet: list[tuple[str, tuple[Term, ...]]] = field(default_factory=list)
    lost: list[list[str]] = field(default_factory=list)
    whole: list[list[str]] = field(default_factory=list)


@naming_options(TranslationKeywords)
def translate_markup(
    translator: Translator,
    texts: Iterable[str],
    markup: Markup,
    *,
    terms: Terms | Iterable[Pair] | None = None,
    **keywords: Unpack[TranslationKeywords],
) -> list[str]:
    """Translate texts with markup; each is divided into sentences.

    Args:
        translator: an open bundle.
        texts: each gives one translation, in the same order.
        markup: what they are made of.
        terms: of all texts; see ``Translator.translate``. A warning names those that are not met.
            Another one names sentences that stay as they are, since no translation of theirs has
            their placeholders, and one messages of ICU, which are kept as a whole.
        **keywords: ``source_language``, ``target_language`` and the options of
            ``DecodingOptions``; not ``num_hypotheses``, of which the best is taken.

    Raises:
        InputError: a text is malformed.
        ConfigError: options are wrong, or texts have tags in their sentences, and the bundle gives
            no attention to place them by.
        MissingDependencyError: a parser is not installed.
    """
    rows = check_rows("texts", texts, "strings")
    given: dict[str, Any] = dict(keywords)
    pair = LanguagePair(given.pop("source_language", None), given.pop("target_language", None))
    checked = None if terms is None else Terms.of(terms)
    found = translate_texts(
        translator.engine, [Text(row, markup) for row in rows], given, pair, checked
    )
    if found.unmet:
        missing = dict.fromkeys(repr(term.source) for _, terms in found.unmet for term in terms)
        count = len(found.unmet)
        many = "1 sentence does" if count == 1 else f"{count} sentences do"
        text = f"{many} not meet terms: {join_some(list(missing))}"
        warnings.warn(TfexportWarning(text), stacklevel=3)
    if lost := [repr(sentence) for sentences in found.lost for sentence in sentences]:
        text = f"no translation has the placeholders of what stays as it is: {join_some(lost)}"
        warnings.warn(TfexportWarning(text), stacklevel=3)
    if whole := [repr(message) for messages in found.whole for message in messages]:
        text = f"messages of ICU are kept as a whole, their words too: {join_some(whole)}"
        warnings.warn(TfexportWarning(text), stacklevel=3)
    return found.texts


def translate_texts(
    engine: Engine,
    texts: Sequence[Text],
    given: Mapping[str, Any],
    language_pair: LanguagePair,
    terms: Terms | None = None,
) -> Translation:
    """Translate texts with markup; each is divided into sentences.

    Args:
        engine: the model.
        texts: with what they are made of.
        given: decoding options by name.
        language_pair: languages that the caller names.
        terms: of all texts.

    Raises:
        InputError: a text is malformed, or has tags in its sentences, and the model has no
            attention to place them by.
        ConfigError: options are wrong.
        MissingDependencyError: a parser is not installed.
    """
    with no_collecting():
        documents = [_read(text, number) for number, text in enumerate(texts, 1)]
    aligned = any(document.aligned for document in documents)
    if aligned and engine.manifest.attention_shape is None:
        raise ConfigError(
            f"{engine.path}: the texts have tags or placeholders in their sentences, which are "
            "placed by attention, and the bundle of this custom module gives none."
        )
    options = dict(given)
    if aligned:
        options["return_attention"] = True
    prefixes: list[Prefix] = [None]
    resolved, _ = engine.resolver.resolve(options, prefixes, [], language_pair)
    languages = ModelLanguages.of(engine.path.stem, engine.manifest.languages, None)
    source = language_pair.source or languages.default_source or _only(languages.sources)
    target = language_pair.target or _only(languages.targets)
    jobs = _Encoder(engine, resolved, source, target, terms).jobs(documents)
    return _translated(documents, _decoded(engine, resolved, terms, jobs))


def _only(codes: Sequence[str]) -> str:
    return codes[0] if len(codes) == 1 else ""


def _read(text: Text, number: int) -> Document:
    try:
        check_text(text.text)
        return text.markup.read(text.text)
    except InputError as error:
        raise InputError(f"text {number}: {error}") from None


class _Encoder:
    """Divides words into sentences that fit the model, and makes requests of these.

    Args:
        engine: the model.
        options: how to decode.
        source: code of the language of the texts; empty if it is unknown.
        target: that of the translations.
        terms: of all texts.
    """

    def __init__(
        self,
        engine: Engine,
        options: ResolvedOptions,
        source: str,
        target: str,
        terms: Terms | None,
    ) -> None:
        self._engine, self._options, self._terms = engine, options, terms
        self._split: Split = "none" if engine.manifest.reads == "texts" else "punctuation"
        self._source, self._join = source, join_of(target)
        hidden, unk = engine.manifest.hidden_ids, engine.manifest.special_ids.unk
        self._wordless = frozenset({*hidden, unk})
        self._ids = dict[str, list[int]]()  # of the sentences of the document that is read

    def split(self, text: str) -> SplitText:
        """Divide the words of a segment."""
        return split_text(text, self._source, self._split, self._join).divided(self._fits)

    def _fits(self, sentence: str) -> bool:
        options = self._options
        try:
            self._ids[sentence] = self._engine.texts.encode(
                sentence, options.truncate, options.max_input_length, options.framing
            )
        except TooLongError:
            return False
        return True

    def jobs(self, documents: Iterable[Document]) -> Iterator[Job]:
        """The sentences of all documents in order, found while those before them are decoded.

        The number of a job is that of its document, from 0.
        """
        row = 0
        for number, document in enumerate(documents):
            self._ids.clear()
            document.cut(self.split)
            for form in document.forms:
                sentence, worded, optional = form.text, form.worded, form.optional
                request = None
                if worded:
                    with contextlib.suppress(*((TooLongError,) if optional else ())):
                        request = self._request(sentence, row)
                if request and not has_words(
                    sentence, request.ids, self._wordless, self._engine.texts
                ):
                    request = None
                yield Job(number, request, text=sentence)
                row += 1

    def _request(self, sentence: str, number: int) -> Request | None:
        options, required = self._options, None
        if self._terms:
            required = self._engine.required(sentence, self._terms, options)
        ids = self._ids.get(sentence) if required is None else None  # terms need the whole text
        return self._engine.request(
            sentence if ids is None else ids, number, (), options, as_ids=ids is not None,
            required=required,
        )  # fmt: skip


@dataclass(frozen=True)
class _Decoded:
    """A sentence of a document that was decoded, or stays as it is."""

    row: Row
    finished: bool = True
    unknown: int = 0
    unmet: tuple[Term, ...] = ()


def _decoded(
    engine: Engine, options: ResolvedOptions, terms: Terms | None, jobs: Iterable[Job]
) -> Iterator[tuple[int, _Decoded]]:
    """The number of the document of each sentence, and the sentence."""
    for job, hypotheses in engine.decode_stream(jobs, options, rows_ahead(options)):
        if job.request is None:
            row = Row(job.text, kept=True)
            yield job.number, _Decoded(row, unmet=unmet_as_it_is(terms, job.text))
            continue
        result = engine.result(job.text, job.request.ids, hypotheses, options, terms=terms)
        row = read_row(engine.texts, result, job.text, 0, options.replace_unknowns)
        finished, unknown = hypotheses[0].finished, result.unknown_tokens
        yield job.number, _Decoded(row, finished, unknown, result.unmet_terms)


def _by_document(
    documents: Iterable[Document], decoded: Iterable[tuple[int, _Decoded]]
) -> Iterator[tuple[Document, list[_Decoded]]]:
    """Each document as soon as its sentences are decoded; some have none."""
    waiting = enumerate(documents)
    for number, group in groupby(decoded, key=itemgetter(0)):
        sentences = [sentence for _, sentence in group]
        for place, document in waiting:
            yield document, sentences if place == number else []
            if place == number:
                break
    yield from ((document, []) for _, document in waiting)


def _translated(
    documents: Sequence[Document], decoded: Iterable[tuple[int, _Decoded]]
) -> Translation:
    texts, unfinished, counts = list[str](), 0, list[int]()
    unmet, lost = list[tuple[str, tuple[Term, ...]]](), list[list[str]]()
    for document, sentences in _by_document(documents, decoded):
        rows = [sentence.row for sentence in sentences]
        choice, forms = document.choose(rows), document.forms
        texts.append(document.write(rows, choice))
        lost.append(choice.sentences)
        chosen = [(forms[number].text, sentences[number]) for number in choice.numbers]
        unmet += [(text, sentence.unmet) for text, sentence in chosen if sentence.unmet]
        unfinished += sum(not sentence.finished for _, sentence in chosen)
        counts += [sentence.unknown for _, sentence in chosen if not sentence.row.kept]
    several = sum(count > 0 for count in counts)
    whole = [document.messages for document in documents]
    return Translation(texts, len(counts), unfinished, (sum(counts), several), unmet, lost, whole)
