"""A text with markup: the sentences that a model translates, and the text of their translations."""

import re
from bisect import bisect_right
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from tfexport.errors import InputError
from tfexport.markup.alignment import Tokens, Unit, align, split_words
from tfexport.markup.placeholders import Placeholders, has_forms, listed, occurrences, occurs
from tfexport.markup.placement import Placement, divide_words
from tfexport.markup.segments import Segment, Variant, make_segment
from tfexport.markup.tokens import (
    NO_RULES,
    STATEMENT,
    WHITE,
    TagRules,
    Token,
    escape,
    split_runs,
)
from tfexport.runtime.results import Term, TranslationResult
from tfexport.runtime.terms import Terms
from tfexport.runtime.text.codec import WORD_MARKS, TextCodec
from tfexport.runtime.text.sentences import SplitText

if TYPE_CHECKING:  # slow to import, and of one format
    from tfexport.markup.dialects import Dialect
    from tfexport.markup.markdown_reader import References

Format = Literal["text", "html", "xml"]
FORMATS: tuple[Format, ...] = ("text", "html", "xml")
# What Laravel and Symfony choose from: "{0} none|{1} one|[2,*] many", "one|many".
_CHOICE = (
    r"\A(?:\{\d+\}|\[\d+,(?:\d+|\*)\])\s?(?=[^|]*\|)|\s?\|\s?(?:\{\d+\}|\[\d+,(?:\d+|\*)\])\s?"
    r"|(?<=[^\s|])\|(?=[^\s|])"
)
_LINE_OR_STATEMENT = re.compile(
    rf"((?:[\r\n\v\f\x1c-\x1e\x85\u2028\u2029]|{_CHOICE}"
    rf"|{STATEMENT.pattern.replace('(', '(?:', 1)})+)",
    re.DOTALL,
)
# One of these is in all that ``_LINE_OR_STATEMENT`` finds.
_MAY_DIVIDE = re.compile(r"[\r\n\v\f\x1c-\x1e\x85\u2028\u2029|{<]")


@dataclass(frozen=True)
class Markup:
    """The format of texts, with their placeholders and rules for elements.

    Attributes:
        format: of the texts; "markdown" is that of a single paragraph, as ``read_file`` finds it.
        placeholders: those that texts contain; None for the usual ones in markup, and none in plain
            text.
        rules: for elements.
        references: the labels of links of Markdown, as ``read_file`` finds them.
        dialect: of Markdown; None for what all dialects have.
        accelerator: in plain text, where the sign before the letter of an accelerator is.
    """

    format: Format | Literal["markdown"] = "text"
    placeholders: Placeholders | None = None
    rules: TagRules = NO_RULES
    references: "References" = field(default_factory=dict, hash=False)
    accelerator: int | None = None
    dialect: "Dialect | None" = None

    def __bool__(self) -> bool:
        return self.format != "text" or self.placeholders is not None

    def is_needed(self, text: str) -> bool:
        """Whether a text has markup or placeholders, or may have."""
        return self.format != "text" or bool(self.placeholders and self.placeholders.find(text))

    def read(self, text: str) -> "Document":
        """Read a text.

        Raises:
            InputError: it is not well-formed XML, or has too many tags.
            MissingDependencyError: the parser is not installed.
        """
        found = Placeholders() if self.placeholders is None else self.placeholders
        if self.format == "text":
            tokens = _plain_tokens(text, found)
            if self.accelerator is not None:
                tokens = _with_accelerator(tokens, self.accelerator)
            write: Callable[[str], str] = str
        else:
            tokens, write = self._read(text)
        parts = [
            part if isinstance(part, str) else make_segment(part, found, write)
            for part in split_runs(tokens)
        ]
        return Document(parts, found.of_programs())

    def words(self, text: str) -> str:
        """A text without its markup, a paragraph a line.

        Raises:
            InputError: see ``read``.
        """
        return "\n".join(segment.text for segment in self.read(text).segments)

    def _read(self, text: str) -> tuple[list[Token], Callable[[str], str]]:
        """The tokens of markup, and what makes markup of words; see ``read``."""
        # The readers are slow to import: each where it is needed.
        if self.format == "markdown":
            from tfexport.markup.markdown_reader import escape_markdown, read_inline  # noqa: PLC0415

            tokens = read_inline(text, self.references, self.rules, self.dialect)
            return tokens, escape_markdown
        if self.format == "html":
            from tfexport.markup.html_reader import read_html  # noqa: PLC0415

            return read_html(text, self.rules), escape
        from tfexport.markup import xml_reader  # noqa: PLC0415

        tokens = xml_reader.read_xml(text, self.rules)
        if xml_reader.is_android(text):
            return xml_reader.unescape_android(tokens), xml_reader.escape_android
        return tokens, escape


def _plain_tokens(text: str, placeholders: Placeholders) -> list[Token]:
    """The lines of a plain text, between line breaks, statements and messages of several lines."""
    if not _MAY_DIVIDE.search(text):
        return [Token("text", text, text=text)]
    tokens, begin = list[Token](), 0
    messages = [span for span in placeholders.messages(text) if "\n" in text[slice(*span)]]

    spans = placeholders.find(text) if "|" in text else []
    ends = [end for _, end in spans]

    def add_lines(first: int, last: int) -> None:
        place = first
        for found in _LINE_OR_STATEMENT.finditer(text, first, last):
            if "|" in found[0] and not found[0].startswith(("{%", "{{", "<%")):
                number = bisect_right(ends, found.start())
                if number < len(spans) and spans[number][0] < found.start():
                    continue  # of a placeholder, such as {{ name|title }}
            line = text[place : found.start()]
            tokens.append(Token("text", line, text=line))
            tokens.append(Token("empty", found[0], "block"))
            place = found.end()
        tokens.append(Token("text", text[place:last], text=text[place:last]))

    for start, end in messages:
        if start >= begin:
            add_lines(begin, start)
            message = text[start:end]
            tokens.append(Token("kept", message, text=WHITE.sub(" ", message)))
            begin = end
    add_lines(begin, len(text))
    return tokens


def _with_accelerator(tokens: Sequence[Token], place: int) -> list[Token]:
    """Make a tag of the sign of an accelerator, which goes with the word that it is in."""
    made, begin = list[Token](), 0
    for token in tokens:
        at = place - begin
        if token.kind == "text" and 0 <= at < len(token.raw):
            start = re.search(r"\w*\Z", token.raw[:at]).start()  # type: ignore[union-attr]
            word = token.raw[start:at] + token.raw[at + 1 :]
            made += [
                Token("text", token.raw[:start], text=token.raw[:start]),
                Token("empty", token.raw[at], "hidden"),
                Token("text", word, text=word),
            ]
        else:
            made.append(token)
        begin += len(token.raw)
    return made


PLAIN = Markup()
_MOST_TRIALS = 40  # of rows of a paragraph, each of which is written for it


@dataclass(frozen=True)
class Row:
    """A translation of a sentence.

    Attributes:
        text: of the translation.
        tokens: the tokens of the translation; None if they have no attention.
        kept: whether the sentence was not translated, since it has no words.
    """

    text: str
    tokens: Tokens | None = None
    kept: bool = False


@dataclass(frozen=True)
class Choice:
    """The rows of which a document is written.

    Attributes:
        numbers: the row of each sentence.
        lost: the first form of each sentence that stays as it is, by the number of its row: no
            translation of it has its placeholders.
    """

    numbers: list[int]
    lost: dict[int, Variant]

    def kept(self, number: int) -> Row | None:
        """The row of a sentence that stays as it is; None for one that is translated."""
        return Row(self.lost[number].text, kept=True) if number in self.lost else None

    @property
    def sentences(self) -> list[str]:
        """The sentences that stay as they are."""
        return [variant.text for variant in self.lost.values()]


@dataclass(frozen=True)
class Document:
    """A text with markup.

    Attributes:
        parts: markup that stays as it is, and the words between.
        foreign: placeholders that a translation may not bring in.
    """

    parts: list[str | Segment]
    foreign: Placeholders

    @cached_property
    def segments(self) -> list[Segment]:
        """The words."""
        return [part for part in self.parts if isinstance(part, Segment)]

    @property
    def aligned(self) -> bool:
        """Whether translations have to be aligned."""
        return any(segment.aligned for segment in self.segments)

    @property
    def messages(self) -> list[str]:
        """The messages of ICU with words in their forms, which are kept as a whole."""
        kept = (segment.text[slice(*span)] for segment in self.segments for span in segment.kept)
        return [literal for literal in kept if has_forms(literal)]

    def cut(self, split: Callable[[str], SplitText]) -> None:
        """Find the sentences of all words."""
        for segment in self.segments:
            segment.cut(split(segment.text))

    @property
    def forms(self) -> list[Variant]:
        """Every variant of every sentence, in order: a row for a model each."""
        return [
            variant
            for segment in self.segments
            for variants in segment.variants
            for variant in variants
        ]

    @property
    def sentences(self) -> list[str]:
        """The texts of ``forms``."""
        return [form.text for form in self.forms]

    def choose(self, rows: Sequence[Row]) -> "Choice":
        """The row of each sentence whose translation has its placeholders.

        Args:
            rows: the translations of ``sentences``; optional ones that are kept are left out.
        """
        numbers, lost, place = list[int](), dict[int, Variant](), 0
        forms = self.forms
        for segment in self.segments:
            firsts, whole = list[int](), list[list[int]]()  # of each sentence
            for variants in segment.variants:
                here = zip(variants, rows[place : place + len(variants)], strict=True)
                firsts.append(place)
                whole.append([
                    number
                    for number, (variant, row) in enumerate(here, place)
                    if not (variant.optional and row.kept)
                    and self._is_whole(variant, row, len(variants) > 1)
                ])  # fmt: skip
                place += len(variants)
            chosen = [found[0] if found else None for found in whole]
            choice = _choice(forms, firsts, chosen)
            if len(segment.in_turn) > 1 and not _keeps_turns(segment, _pairs(forms, rows, choice)):
                choice = _choice(forms, firsts, _with_turns(segment, forms, rows, firsts, whole))
            numbers += choice.numbers
            lost |= choice.lost
        return Choice(numbers, lost)

    def write(self, rows: Sequence[Row], choice: "Choice") -> str:
        """The document of translations.

        Args:
            rows: the translations of ``sentences``.
            choice: see ``choose``.

        Raises:
            InputError: a translation that has to be aligned has no attention.
        """
        pairs = _pairs(self.forms, rows, choice)
        return "".join(
            part if isinstance(part, str) else _translated(part, pairs) for part in self.parts
        )

    def _is_whole(self, variant: Variant, row: Row, has_placeholders: bool) -> bool:
        """Whether a translation has the placeholders of its sentence, each as often, and no other.

        It has words besides them. Those that a variant leaves out are put in later: its translation
        may not have them.
        """
        if row.kept:
            return True
        if not (has_placeholders or variant.literals or variant.left_out):
            return not self.foreign.find(row.text)
        places = occurrences(row.text, variant.literals.values())
        if places is None:
            return False
        rest, place = list[str](), 0
        for start, end in sorted(places):
            rest.append(row.text[place:start])
            place = end
        other = "\n".join([*rest, row.text[place:]])
        if has_placeholders and not any(map(str.isalnum, other)):
            return False  # all words are lost
        return not self.foreign.find(other) and not any(
            occurs(other, literal) for literal in variant.left_out
        )


def _pairs(
    forms: Sequence[Variant], rows: Sequence[Row], choice: Choice
) -> Iterator[tuple[Variant, Row]]:
    """The form of each sentence of a choice, and its row."""
    for number in choice.numbers:
        yield forms[number], choice.kept(number) or rows[number]


def _choice(
    forms: Sequence[Variant], firsts: Sequence[int], chosen: Sequence[int | None]
) -> Choice:
    """The choice of a row for each sentence; None for one that stays as it is."""
    pairs = list(zip(firsts, chosen, strict=True))
    lost = {first: forms[first] for first, number in pairs if number is None}
    return Choice([first if number is None else number for first, number in pairs], lost)


def _with_turns(
    segment: Segment,
    forms: Sequence[Variant],
    rows: Sequence[Row],
    firsts: Sequence[int],
    whole: Sequence[Sequence[int]],
) -> list[int | None]:
    """For each sentence of a segment the first row that keeps its directives in their order.

    Args:
        segment: of which directives without a number or a name would change places.
        forms: of all sentences.
        rows: of all sentences.
        firsts: the number of the first form of each sentence of the segment.
        whole: the rows of each that have its placeholders.
    """
    chosen, trials = list[int | None](), 0
    for place, (first, found) in enumerate(zip(firsts, whole, strict=True)):
        if not segment.takes_turns(forms[first]):
            chosen.append(found[0] if found else None)
            continue
        kept: int | None = None
        for number in found if trials < _MOST_TRIALS else ():
            trials += 1
            alone = [number if other == place else None for other in range(len(firsts))]
            if _keeps_turns(segment, _pairs(forms, rows, _choice(forms, firsts, alone))):
                kept = number
                break
        chosen.append(kept)
    # Words of one sentence may draw the placeholder of another to their place.
    if _keeps_turns(segment, _pairs(forms, rows, _choice(forms, firsts, chosen))):
        return chosen
    return [
        None if segment.takes_turns(forms[first]) else number
        for first, number in zip(firsts, chosen, strict=True)
    ]


def _keeps_turns(segment: Segment, pairs: Iterator[tuple[Variant, Row]]) -> bool:
    """Whether the directives of a segment that have no number or name stay in their order."""
    literals = segment.in_turn
    return listed(_translated(segment, pairs), literals) == listed(segment.raw, literals)


def _places(variant: Variant, row: Row) -> list[tuple[int, int]]:
    """Where the placeholders of a variant are in a translation that has them."""
    return variant.places() if row.kept else occurrences(row.text, variant.literals.values()) or []


def _translated(segment: Segment, found: Iterator[tuple[Variant, Row]]) -> str:
    """The markup of a translated segment."""
    pairs = [next(found) for _ in segment.spans]
    if all(row.kept for _, row in pairs):
        return segment.raw
    text, before, units = "", "", list[Unit]()
    for place, (variant, row) in enumerate(pairs):
        kept = row.kept or (place > 0 and pairs[place - 1][1].kept)
        text += segment.split.gap(place, before, row.text, kept)
        if segment.aligned:
            units += [
                replace(unit, start=unit.start + len(text), end=unit.end + len(text))
                for unit in _units(variant, row)
            ]
        before = row.text
        text += row.text
    text += segment.split.gaps[-1]
    if segment.aligned:
        units = divide_words(segment.text, text, units, segment.nodes)
        written = Placement(text, units, segment.escape).write(segment.nodes)
    else:
        written = segment.escape(text)
    return segment.before + written + segment.after


def _units(variant: Variant, row: Row) -> list[Unit]:
    """The words of a translation, with places of the segment."""
    places = _places(variant, row)
    if row.kept:
        words = [Unit(*span, span[0]) for span in split_words(row.text, sorted(places))]
    elif row.tokens is None:
        raise InputError("a translation without attention cannot be aligned with its markup")
    else:
        whole = sorted(variant.places())
        words = align(variant.text, row.text, row.tokens, sorted(places), whole)
    numbers = dict(zip(places, variant.literals, strict=True))
    return [_placed(variant, unit, numbers) for unit in words]


def _placed(variant: Variant, unit: Unit, numbers: dict[tuple[int, int], int]) -> Unit:
    number = numbers.get((unit.start, unit.end))
    if number is not None:
        part = variant.keeps.index(number)
        return replace(unit, source=variant.sources[part], kept=number)
    drawn = tuple(map(variant.source, unit.drawn))
    source = None if unit.source is None else variant.source(unit.source)
    return replace(unit, source=source, drawn=drawn)


def read_row(
    texts: TextCodec, result: TranslationResult, sentence: str, rank: int, filled: bool
) -> Row:
    """The row of one hypothesis of a sentence.

    Args:
        texts: the tokenizers of the model.
        result: the translation of the sentence.
        sentence: what was translated.
        rank: of the hypothesis, from 0; the last one if there are fewer.
        filled: whether unknown tokens were replaced by words of the source.
    """
    rank = min(rank, len(result.hypotheses) - 1)
    hypothesis, text = result.hypotheses[rank], result.texts[rank]
    if hypothesis.attention is None:
        return Row(text)
    before, after = result.framing
    attention = hypothesis.attention[:, before : len(result.source_tokens) - after]
    alignment = result.alignment(rank) if filled else []

    def text_of(count: int) -> str:
        tokens = hypothesis.tokens[:count]
        return texts.fill_unknowns(tokens, alignment, sentence) if filled else texts.decode(tokens)

    return Row(text, Tokens(texts.surfaces(sentence), attention, text_of))


def has_words(
    sentence: str, tokens: Sequence[int], wordless: Container[int | None], texts: TextCodec
) -> bool:
    """Whether a sentence has a letter, and a token that the model knows.

    The model's output for any other sentence is arbitrary.

    Args:
        sentence: the source.
        tokens: its ids.
        wordless: ids of no word: special, language and unknown tokens.
        texts: the tokenizers of the model.
    """
    if not any(map(str.isalpha, sentence)):
        return False
    piece = texts.source.piece
    return any(token not in wordless and piece(token) not in WORD_MARKS for token in tokens)


def unmet_as_it_is(terms: Terms | None, sentence: str) -> tuple[Term, ...]:
    """The terms that a sentence does not meet which is not translated."""
    found = terms.find(sentence) if terms else []
    return tuple(term for term in found if not any(target in sentence for target in term.targets))
