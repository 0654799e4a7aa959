"""Translation of texts with markup, by an open bundle."""

import contextlib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tfexport.errors import ConfigError, InputError, TfexportWarning, TooLongError, join_some
from tfexport.markup.document import (
    Document,
    Markup,
    Row,
    has_words,
    read_row,
    unmet_as_it_is,
)
from tfexport.markup.files import Text
from tfexport.runtime.engine import Engine
from tfexport.runtime.options import TranslationKeywords, naming_options
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
    documents = [_read(text, number) for number, text in enumerate(texts, 1)]
    aligned = any(document.aligned for document in documents)
    if aligned and engine.manifest.module_io is not None:
        raise ConfigError(
            f"{engine.path}: the texts have tags or placeholders in their sentences, which are "
            "placed by attention, and the bundle of a custom module gives none."
        )
    options = dict(given)
    if aligned:
        options["return_attention"] = True
    prefixes: list[Prefix] = [None]
    resolved, _ = engine.resolver.resolve(options, prefixes, [], language_pair)
    languages = ModelLanguages.of(engine.path.stem, engine.manifest.languages, None)
    source = language_pair.source or languages.default_source or _only(languages.sources)
    target = language_pair.target or _only(languages.targets)
    _cut(engine, documents, resolved, source, target)
    return _translated(engine, documents, resolved, terms)


def _only(codes: Sequence[str]) -> str:
    return codes[0] if len(codes) == 1 else ""


def _read(text: Text, number: int) -> Document:
    try:
        check_text(text.text)
        return text.markup.read(text.text)
    except InputError as error:
        raise InputError(f"text {number}: {error}") from None


def _cut(
    engine: Engine,
    documents: Sequence[Document],
    options: ResolvedOptions,
    source: str,
    target: str,
) -> None:
    """Find the sentences of documents; those that are too long for the model are divided."""
    split: Split = "none" if engine.manifest.reads == "texts" else "punctuation"
    join = join_of(target)

    def fits(sentence: str) -> bool:
        try:
            engine.texts.encode(
                sentence, options.truncate, options.max_input_length, options.framing
            )
        except TooLongError:
            return False
        return True

    def sentences(text: str) -> SplitText:
        return split_text(text, source, split, join).divided(fits)

    for document in documents:
        document.cut(sentences)


def _translated(
    engine: Engine,
    documents: Sequence[Document],
    options: ResolvedOptions,
    terms: Terms | None,
) -> Translation:
    manifest, texts = engine.manifest, engine.texts
    wordless = frozenset({*manifest.hidden_ids, manifest.special_ids.unk})
    requests = list[Request | None]()
    for document in documents:
        flags = zip(document.sentences, document.worded, document.optional, strict=True)
        for sentence, worded, optional in flags:
            request = None
            if worded:
                with contextlib.suppress(*((TooLongError,) if optional else ())):
                    request = engine.request(
                        sentence, len(requests), (), options, as_ids=False,
                        required=engine.required(sentence, terms, options),
                    )  # fmt: skip
            if request and not has_words(sentence, request.ids, wordless, texts):
                request = None
            requests.append(request)
    found = iter(zip(requests, engine.decode(requests, options), strict=True))
    made, unfinished, counts = list[str](), 0, list[int]()
    unmet, lost = list[tuple[str, tuple[Term, ...]]](), list[list[str]]()
    for document in documents:
        rows, cut, unknown = list[Row](), list[bool](), list[int]()
        missing = list[tuple[Term, ...]]()
        for sentence in document.sentences:
            request, hypotheses = next(found)
            if request is None:
                rows.append(Row(sentence, kept=True))
                cut.append(False)
                unknown.append(0)
                missing.append(unmet_as_it_is(terms, sentence))
                continue
            result = engine.result(sentence, request.ids, hypotheses, options, terms=terms)
            missing.append(result.unmet_terms)
            rows.append(read_row(texts, result, sentence, 0, options.replace_unknowns))
            cut.append(not hypotheses[0].finished)
            unknown.append(result.unknown_tokens)
        choice = document.choose(rows)
        made.append(document.write(rows, choice))
        lost.append(choice.sentences)
        chosen = choice.numbers
        unmet += [
            (document.sentences[number], missing[number]) for number in chosen if missing[number]
        ]
        unfinished += sum(cut[number] for number in chosen)
        counts += [unknown[number] for number in chosen if not rows[number].kept]
    several = sum(count > 0 for count in counts)
    whole = [document.messages for document in documents]
    return Translation(made, len(counts), unfinished, (sum(counts), several), unmet, lost, whole)
