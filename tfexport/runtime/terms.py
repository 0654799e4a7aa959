"""Terms: phrases of a source text, and what their translation has to contain.

docs/terms.md has the rules of matching.
"""

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

from tfexport.errors import InputError, join_problems, shown
from tfexport.runtime.results import Term
from tfexport.runtime.text.codec import check_text

Pair = tuple[str, str | Sequence[str]]  # a source phrase, and its target phrases
MOST_TERMS = 200_000
MOST_CHARACTERS = 1000  # of a phrase
MOST_ALTERNATIVES = 32  # of a term
_SHOWN = 5  # problems that are listed
_LOOKED_AHEAD = 8  # characters in which the text of a token is looked for
_ENDS = frozenset(".!?…。！？")  # of sentences
_JOINERS = frozenset("\u200c\u200d_")  # inside words, besides letters, marks and digits
# Blocks of scripts that are written without spaces between words: each character counts as a word.
_SPACELESS = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x3040, 0x30FF),  # Hiragana, Katakana
    (0x3400, 0x9FFF),  # Han
    (0xF900, 0xFAFF),
    (0x20000, 0x3FFFF),
)


@lru_cache(4096)
def _kind(character: str) -> str:
    """Whether a character is a "word"'s, a "mark" on another, "spaceless", "space" or a "sign"."""
    if character.isspace():
        return "space"
    category = unicodedata.category(character)
    if category[0] == "M":
        return "mark"
    if any(first <= ord(character) <= last for first, last in _SPACELESS):
        return "spaceless"
    return "word" if category[0] in "LN" or character in _JOINERS else "sign"


def joins(before: str, after: str) -> bool:
    """Whether a word goes on from one text into the next."""
    if not before or not after:
        return False
    return _kind(after[0]) == "mark" or (_kind(before[-1]), _kind(after[0])) in _JOINED


_JOINED = {("word", "word"), ("mark", "word")}
# Texts of these characters alone are in form NFC, or have no form of their own; they have no marks,
# no joiner but "_", no script without spaces, and no white space but " ": Latin, Greek, Cyrillic.
_PLAIN = re.compile(
    "[ -~\xa1-\u02ff\u0370-\u0482\u048a-\u0590\u1e00-\u1fff\u2010-\u2027\u2030-\u205e]*"
)
_WRITTEN = re.compile(r"\w+|[^\w ]")
_UNITS = re.compile(f" ?(?:{_WRITTEN.pattern})")


class Words(NamedTuple):
    """The words and signs of a text, in Unicode's form NFC.

    Attributes:
        words: each a word, a sign, or a character of a script without spaces; a space before it,
            if the text has any there.
        begins: whether each is the first of a sentence.
    """

    words: tuple[str, ...]
    begins: tuple[bool, ...]


def split_words(text: str) -> Words:
    """Split a text; white space is one space, whatever it is."""
    text = unicodedata.normalize("NFC", text)
    if not _PLAIN.fullmatch(text):
        return _split(text)
    words = _UNITS.findall(text)
    begins, first = [False] * len(words), True
    for place, word in enumerate(words):
        if first:
            begins[place] = True
        written = word[-1]
        first = written in _ENDS or (first and not (written.isalnum() or written == "_"))
    return Words(tuple(words), tuple(begins))


def _split(text: str) -> Words:
    """Split any text in form NFC."""
    words, begins = list[str](), list[bool]()
    space, first = "", True
    for character in text:
        kind = _kind(character)
        if kind == "space":
            space = " "
            first = first or character == "\n"
        elif words and not space and joins(words[-1], character):
            words[-1] += character
        else:
            words.append(space + character)
            begins.append(first)
            space = ""
            # A quotation mark or bracket before a sentence's first word, or after its end.
            first = character in _ENDS or (first and kind == "sign")
    return Words(tuple(words), tuple(begins))


def written_words(text: str) -> list[str]:
    """The words of a text, as of ``split_words``, without the space before them."""
    text = unicodedata.normalize("NFC", text)
    if _PLAIN.fullmatch(text):
        return _WRITTEN.findall(text)
    return [word.lstrip(" ") for word in _split(text).words]


def words_of_pieces(written: Sequence[str], pieces: Sequence[str]) -> list[int] | None:
    """The word of each token of a text, as of ``words_of_tokens``.

    Args:
        written: the words of the text.
        pieces: the tokens, without white space.

    Returns:
        None if the pieces are not exactly the text.
    """
    if "".join(pieces) != "".join(written) or not written:
        return None
    found, word, last, start = list[int](), 0, len(written) - 1, 0
    ends = list(accumulate(map(len, written)))
    for piece in pieces:
        stop = start + len(piece)
        while ends[word] <= start and word < last:
            word += 1
        chosen = word
        if stop > ends[word]:  # a token such as "a." belongs to the word, not to the sign
            reached = bisect_left(ends, stop)
            if reached > word + 1 or _kind(written[reached][0]) != "sign":
                chosen = max(
                    range(word, reached + 1),
                    key=lambda each: (
                        _kind(written[each][0]) != "sign",
                        min(stop, ends[each]) - max(start, ends[each] - len(written[each])),
                        -each,
                    ),
                )
        found.append(chosen)
        start = stop
    return found


def words_of_tokens(written: Sequence[str], surfaces: Sequence[str]) -> list[int]:
    """The word of each token of a text.

    Args:
        written: the words of the text.
        surfaces: the part of the text that each token is; see ``TextCodec.surfaces``. What is not
            there is looked for nearby.
    """
    text = "".join(written)
    word_at = [number for number, word in enumerate(written) for _ in word]
    found, place, before = list[int](), 0, ""
    for surface in surfaces:
        piece, start = _without_space(surface), place
        if not text.startswith(piece, place):
            if piece == before and found:  # one of several tokens of a character
                found.append(found[-1])
                continue
            start = text.find(piece, place, place + len(piece) + _LOOKED_AHEAD)
            start = place if start < 0 else start
        place = min(len(text), start + len(piece))
        of_token = word_at[start : max(place, start + 1)] or word_at[-1:]
        word = of_token[0]
        if word != of_token[-1]:  # a token such as "(a" belongs to the word, not to the sign
            word = max(of_token, key=lambda word: (_kind(written[word][0]) != "sign",
                                                   of_token.count(word), -word))  # fmt: skip
        found.append(word)
        before = piece
    return found


@lru_cache(4096)
def _without_space(surface: str) -> str:
    return "".join(unicodedata.normalize("NFC", surface).split())


def _key(words: Sequence[str]) -> tuple[str, ...]:
    """The text by which words are compared, without the space before the first."""
    return (words[0].lstrip(" "), *words[1:])


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]


def _upper_first(text: str) -> str:
    """The text whose ``_lower_first`` it is, if there is one; else itself."""
    upper = text[:1].upper() + text[1:]
    return upper if _lower_first(upper) == text else text


def _as_words(text: str) -> str:
    """An expression for a text from where a word begins to where one ends."""
    before, after = (r"\b" if _kind(each) == "word" else "" for each in (text[0], text[-1]))
    return before + re.escape(text) + after


def _any_of(expressions: Iterable[str]) -> re.Pattern[str]:
    """Any of some expressions; nothing, for none."""
    return re.compile("|".join(dict.fromkeys(expressions)) or "(?!)", re.ASCII)


@dataclass(frozen=True)
class Phrases:
    """Phrases that are found in texts, the longest first.

    Attributes:
        numbers: the words of each phrase, to its number.
        lengths: the first word of phrases, to their lengths, longest first.
    """

    numbers: Mapping[tuple[str, ...], int]
    lengths: Mapping[str, tuple[int, ...]]

    @cached_property
    def _written(self) -> re.Pattern[str]:
        """Any of the phrases, also with a capital letter at the start; for texts of ASCII."""
        texts = ["".join(words) for words in self.numbers]
        starts = [r"\A" + _as_words(_upper_first(text)) for text in texts]
        return _any_of([*map(_as_words, texts), *starts])

    @cached_property
    def _firsts(self) -> re.Pattern[str]:
        """Any of the first words of phrases, also with a capital letter; for texts of ASCII."""
        words = [form for word in self.lengths for form in (word, _upper_first(word))]
        return _any_of(map(_as_words, words))

    @classmethod
    def of(cls, phrases: Iterable[tuple[str, int]]) -> "Phrases":
        """Phrases with their numbers; each has a word or a sign."""
        numbers: dict[tuple[str, ...], int] = {}
        lengths: dict[str, set[int]] = {}
        for phrase, number in phrases:
            key = _key(split_words(phrase).words)
            numbers.setdefault(key, number)
            lengths.setdefault(key[0], set()).add(len(key))
        ordered = {word: tuple(sorted(found)[::-1]) for word, found in lengths.items()}
        return cls(numbers, ordered)

    def find(self, text: Words) -> list[tuple[int, int, int]]:
        """Each phrase that occurs, the longest of those at a word; occurrences do not overlap.

        Returns:
            Its number, its first word, and the word after it; in order.
        """
        found, free = list[tuple[int, int, int]](), 0
        every = list(self._all(text))
        if len(every) > 1:
            # Of equal length the one as it is written: sorting keeps the order.
            every.sort(key=lambda each: (each[0], -each[1]))
        for start, end, number in every:
            if start >= free:
                found.append((number, start, end))
                free = end
        return found

    def count(self, text: Words) -> int:
        """The most occurrences of any of the phrases that do not overlap."""
        found, free = 0, 0
        for end, start in sorted((end, start) for start, end, _ in self._all(text)):
            if start >= free:
                found, free = found + 1, end
        return found

    def _all(self, text: Words) -> Iterator[tuple[int, int, int]]:
        """Each occurrence: its first word, the word after it, and the number of its phrase.

        A word that begins a sentence is also looked for without its capital letter.
        """
        known, words, begins = self.lengths, text.words, text.begins
        for place, word in enumerate(words):
            word = word.lstrip(" ")
            firsts = [word] if word in known else []
            if begins[place]:
                lower = _lower_first(word)
                if lower != word and lower in known:
                    firsts.append(lower)
            for first in firsts:
                for length in known[first]:
                    end = place + length
                    number = self.numbers.get((first, *words[place + 1 : end]))
                    if number is not None and end <= len(words):
                        yield place, end, number

    def is_in(self, text: str) -> bool | None:
        """Whether some phrase occurs in a text; None if that needs a closer look.

        For few phrases, as each is looked for.
        """
        if not text.isascii():
            return None
        if self._written.search(text):
            return True
        # It may have other white space, or the capital letter of another sentence's first word.
        return None if self._firsts.search(text) else False


class Occurrence(NamedTuple):
    """A term that occurs in a text, from its word ``start`` to before its word ``end``."""

    term: Term
    start: int
    end: int


@dataclass(frozen=True)
class Terms:
    """A checked set of terms, for any number of calls; made by ``of``.

    Attributes:
        terms: the terms, in their order.
    """

    terms: tuple[Term, ...]
    _sources: Phrases = field(repr=False, compare=False)

    @classmethod
    def of(cls, pairs: "Iterable[Pair] | Terms") -> "Terms":
        """Check pairs of a source phrase and its target phrase, or several of which one suffices.

        A pair that is given twice counts once.

        Raises:
            InputError: naming pairs that are none, phrases that are empty or too long, and source
                phrases with two different translations.
        """
        if isinstance(pairs, Terms):
            return pairs
        problems: list[str] = []
        found: dict[tuple[str, ...], Term] = {}
        if isinstance(pairs, str | bytes | Mapping) or not isinstance(pairs, Iterable):
            raise InputError(f"terms: expected a list of pairs, found {shown(pairs)}")
        for number, pair in enumerate(pairs):
            if number == MOST_TERMS:
                problems.append(f"more than {MOST_TERMS} terms")
                break
            try:
                term = _check(pair)
            except InputError as error:
                problems.append(f"term {number}: {error}")
                continue
            known = found.setdefault(_key(split_words(term.source).words), term)
            if known.targets != term.targets:
                problems.append(
                    f"term {number}: {term.source!r} is translated as {_listed(known)}, and as "
                    f"{_listed(term)}; several translations of a phrase are one term: "
                    "(source, [target, target])"
                )
        if problems:
            more = len(problems) - _SHOWN
            named = [*problems[:_SHOWN], *([f"and {more} more"] if more > 0 else [])]
            raise InputError(join_problems("terms", named))
        terms = tuple(found.values())
        return cls(terms, Phrases.of((term.source, place) for place, term in enumerate(terms)))

    def __len__(self) -> int:
        """The number of terms."""
        return len(self.terms)

    def find(self, text: str) -> list[Term]:
        """The term of each occurrence in a source text, in order."""
        return [each.term for each in self.locate(text)]

    def locate(self, text: str) -> list["Occurrence"]:
        """The occurrences in a source text, in order."""
        if not self.terms:
            return []
        return [
            Occurrence(self.terms[place], start, end)
            for place, start, end in self._sources.find(split_words(text))
        ]


def _check(pair: Any) -> Term:
    if isinstance(pair, str | bytes) or not isinstance(pair, Sequence) or len(pair) != 2:
        raise InputError(f"{shown(pair)} is not a pair of a source phrase and a target")
    source, target = pair
    if not isinstance(target, str) and not (isinstance(target, Sequence) and target):
        raise InputError(f"{shown(target)} is neither a target phrase nor a list of them")
    targets = (target,) if isinstance(target, str) else tuple(dict.fromkeys(target))
    if len(targets) > MOST_ALTERNATIVES:
        raise InputError(f"{len(targets)} target phrases; at most {MOST_ALTERNATIVES}")
    for phrase in (source, *targets):
        check_text(phrase)
        if not phrase.strip():
            raise InputError("an empty phrase")
        if len(phrase) > MOST_CHARACTERS:
            raise InputError(
                f"a phrase of {len(phrase)} characters; at most {MOST_CHARACTERS}: "
                f"{shown(phrase[:40])}"
            )
    return Term(source.strip(), tuple(phrase.strip() for phrase in targets))


def _listed(term: Term) -> str:
    return " or ".join(map(repr, term.targets))


GivenTerms = Terms | Iterable[Pair] | Sequence[Terms | None] | None


def terms_of_rows(given: GivenTerms, count: int) -> list[Terms | None]:
    """The terms of each row of a call.

    Args:
        given: pairs or ``Terms`` for all rows, or a list of ``Terms`` and None, one for each row.
        count: the number of rows.

    Raises:
        InputError: see ``Terms.of``; or there are not as many as rows.
    """
    if given is None or isinstance(given, Terms):
        return [given or None] * count
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise InputError(f"terms: expected a list of pairs, or Terms, found {shown(given)}")
    listed: list[Any] = list(given)
    if not any(each is None or isinstance(each, Terms) for each in listed):
        return [Terms.of(listed) or None] * count
    wrong = [each for each in listed if each is not None and not isinstance(each, Terms)]
    if wrong:
        raise InputError(f"terms: {shown(wrong[0])} is not Terms; they are one for each row here")
    if len(listed) != count:
        raise InputError(f"terms: holds {len(listed)} for {count} rows")
    return [each or None for each in listed]
