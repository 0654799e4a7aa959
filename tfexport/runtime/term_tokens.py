"""Terms as tokens of a bundle's target: what a search has to find, and what a text has met."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from typing import Any, NamedTuple

from tfexport.bundle import Manifest
from tfexport.errors import ConfigError, InputError, Message, join_problems, shown
from tfexport.runtime.options import SUBJECT
from tfexport.runtime.results import Term
from tfexport.runtime.search.request import ResolvedOptions
from tfexport.runtime.search.required import Required, Requirement
from tfexport.runtime.terms import (
    Occurrence,
    Phrases,
    joins,
    split_words,
    words_of_pieces,
    words_of_tokens,
    written_words,
)
from tfexport.runtime.text.codec import Framing, TextCodec, check_ids, check_rows
from tfexport.runtime.text.tokenizer import Tokenizer

_CACHED = 10_000  # phrases
# Words before a phrase, to see how it is written inside a sentence; the first that the vocabulary
# has is taken.
_ANCHORS = ("a", "e", "и", "α", "ا", "の", "的", "1", ",")
_AFTER = (".", ",", "?", "!", ":", ";", '"', "'", ")", "。", "、", "，")
_UNDECIDED = "\ufffd"  # written by tokenizers for incomplete UTF-8 bytes
MOST_REQUIRED = 64  # requirements of a row


class _Written(NamedTuple):
    """A target phrase.

    Attributes:
        inside: its tokens inside a sentence, in each way.
        first: its tokens at the start of a text, in each way.
        texts: the phrase, and as it is after tokenization and detokenization.
    """

    inside: tuple[tuple[int, ...], ...]
    first: tuple[tuple[int, ...], ...]
    texts: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class _Target:
    """The target phrases of a term, and what options allow of them.

    Attributes:
        targets: the phrases.
        phrases: finds them in texts.
        inside: their tokens inside a sentence, as of ``_Written``.
        first: at the start of a text.
        problems: of phrases that are banned.
        forms: ways of writing them that were found so far; see ``TermTokens.forms``.
        requirements: those made so far, by their number and count.
    """

    targets: tuple[str, ...]
    phrases: Phrases
    inside: tuple[tuple[int, ...], ...]
    first: tuple[tuple[int, ...], ...]
    problems: tuple[Message, ...]
    forms: dict[tuple[str, bool, bool], tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    requirements: dict[tuple[int, int], "_TermRequirement"] = field(default_factory=dict)

    @property
    def can_be_written(self) -> bool:
        """Whether the vocabulary can write one of the phrases."""
        return bool(self.inside or self.problems)

    def requirement(self, number: int, count: int) -> "_TermRequirement":
        """The requirement of this number that one of the phrases occurs so often."""
        key = number, count
        if key not in self.requirements:
            made = _TermRequirement(self.inside, self.first, count, number, target=self)
            self.requirements[key] = made
        return self.requirements[key]


@dataclass(frozen=True, kw_only=True)
class _TermRequirement(Requirement):
    """A requirement, and the target phrases that it is made of."""

    target: _Target = field(compare=False, repr=False)


class TermTokens:
    """Makes requirements of terms, for one bundle."""

    def __init__(self, manifest: Manifest, texts: TextCodec) -> None:
        self._texts = texts
        # Only a bundle with attention can place phrases.
        self._can_place = manifest.module_io is None
        self._unk, self._size = manifest.special_ids.unk, manifest.limits.target_vocab_size
        self._written = lru_cache(_CACHED)(self._write)
        self._targets: dict[tuple[object, ...], _Target] = {}
        self.has_left_out = False  # whether a phrase was seen that the vocabulary cannot write
        self.decode = texts.decode
        self.written_as = lru_cache(_CACHED)(self._written_as)
        self.is_sign = lru_cache(_CACHED)(self._is_sign)
        self.sign_after = lru_cache(_CACHED)(self._sign_after)

    def required(
        self,
        text: str,
        found: Sequence[Occurrence],
        options: ResolvedOptions,
    ) -> Required | None:
        """The phrases that a target has to contain; None for none.

        A term of which the vocabulary can write no phrase is none of them; ``unmet`` names it.

        Args:
            text: the source.
            found: the occurrences of terms in it.
            options: how it is decoded.

        Raises:
            InputError: naming target phrases that options ban.
        """
        found = [each for each in found if self._target(each.term.targets, options).can_be_written]
        if not found:
            return None
        counts = _counted(each.term for each in found)
        if len(counts) > MOST_REQUIRED:
            raise InputError(
                f"holds {len(counts)} different terms; at most {MOST_REQUIRED}: split the text"
            )
        requirements = self._requirements(counts, options)
        if problems := [problem for each in requirements for problem in each.target.problems]:
            raise InputError(join_problems("terms", problems))
        places = TermPlaces(self, text, requirements, found, options)
        known = places if self._can_place else None
        return Required(requirements, self.boundaries, places, known)

    def _requirements(
        self, counts: Mapping[tuple[str, ...], int], options: ResolvedOptions
    ) -> tuple[_TermRequirement, ...]:
        """That target phrases occur so often."""
        return tuple([
            self._target(targets, options).requirement(number, count)
            for number, (targets, count) in enumerate(counts.items())
        ])  # fmt: skip

    def words_of(self, text: str, ids: Sequence[int], framing: Framing) -> tuple[int, ...]:
        """The word of each id of a source text; see ``Places``."""
        words = written_words(text)
        before, after = self._texts.num_special_tokens(framing)
        of_text = words_of_pieces(words, self._texts.pieces(ids[before : len(ids) - after]))
        if of_text is None:
            of_text = words_of_tokens(words, self._texts.surfaces(text))
        before = len(ids) - len(of_text) - after
        return (*[-1] * before, *of_text, *[-1] * after) if before >= 0 else (-1,) * len(ids)

    def _target(self, targets: tuple[str, ...], options: ResolvedOptions) -> _Target:
        """Encode target phrases, and leave out what options ban; kept for further texts."""
        key = (targets, options.never_inside, options.suppress_sequences)
        known = self._targets.get(key)
        if known is None:
            if len(self._targets) >= _CACHED:
                self._targets.clear()
            known = self._targets[key] = self._find_target(targets, options)
        return known

    def _find_target(self, targets: tuple[str, ...], options: ResolvedOptions) -> _Target:
        problems, texts = list[Message](), list[str]()
        inside, first = list[tuple[int, ...]](), list[tuple[int, ...]]()
        for target in targets:
            try:
                written = self._written(target)
            except InputError:  # the vocabulary lacks a part of it
                self.has_left_out = True
                texts.append(target)
                continue
            reason = _why_banned(written.inside[0], options)
            if reason is not None:
                problems.append(Message(f"target phrase {target!r} ", reason))
            inside += written.inside
            first += written.first
            texts += written.texts
        phrases = Phrases.of((text, 0) for text in texts)
        usable = _allowed(inside, options), _allowed(first, options)
        return _Target(targets, phrases, *usable, tuple(problems))

    def unmet(self, found: Sequence[Term], text: str, options: ResolvedOptions) -> tuple[Term, ...]:
        """The terms, of those found in a source, that its translation does not meet.

        Of terms with the same target phrases none can be told from the others: all are named.
        """
        requirements = self._requirements(_counted(found), options)
        targets = {requirements[each].target.targets for each in _unmet(requirements, text)}
        return tuple(term for term in dict.fromkeys(found) if term.targets in targets)

    @cached_property
    def boundaries(self) -> "WordBoundaries | None":
        """Where words begin and end; None if the vocabulary has no word to tell it by."""
        tokenizer = self._texts.target
        for word in _ANCHORS[:-2]:
            alone, inside = self._encode(word), self._after(word, f" {word}")
            if alone and inside:
                return WordBoundaries(tokenizer, word, alone, inside[0])
        return None

    def _after(self, anchor: str, text: str) -> list[int]:
        """The tokens of a text after an anchor; none if they cannot be told apart."""
        before, whole = self._encode(anchor), self._encode(anchor + text)
        return whole[len(before) :] if whole[: len(before)] == before else []

    def _encode(self, text: str) -> list[int]:
        """The tokens of a text; none if the vocabulary lacks a part of it."""
        try:
            found = self._texts.target.encode(text)
        except InputError:
            return []
        return [] if self._unk in found else found

    def _write(self, phrase: str) -> _Written:
        """The tokens of a phrase.

        Raises:
            InputError: the vocabulary lacks a part of it.
        """
        tokenizer = self._texts.target
        alone = tuple(tokenizer.encode(phrase))
        if not alone or self._unk in alone or max(alone) >= self._size:
            lacking = shown(self._lacking(alone))
            raise InputError(f"has a part that the target's vocabulary lacks: {lacking}")
        anchors = [each for each in _ANCHORS if self._encode(each)]
        inside = [self._first_after(anchors, f" {phrase}") or alone]
        if not joins(
            "a", phrase
        ):  # a sign, or a script without spaces: written without a space too
            inside.append(self._first_after(anchors, phrase))
        capital = _capital(phrase)
        first = [alone, tuple(self._encode(capital))]
        # Some vocabularies have words together with the sign after them, such as "▁big.".
        for sign in _AFTER:
            for written, known in ((f" {phrase}{sign}", inside), (f"{capital}{sign}", first)):
                if known is inside:
                    signed = self._first_after(anchors, written)
                else:
                    signed = tuple(self._encode(written))
                if signed and not any(each == signed[: len(each)] for each in known if each):
                    known.append(signed)
        round_trip = self._texts.decode(alone)
        texts = tuple(dict.fromkeys(text for text in (phrase, round_trip) if text.strip()))
        begun = tuple(each for each in first if each)
        return _Written(self._starting(inside), begun, texts)

    def forms(
        self, target: _Target, sign: str, first: bool, upper: bool, options: ResolvedOptions
    ) -> tuple[tuple[int, ...], ...]:
        """Ways of writing target phrases that options allow; see ``required.Places``."""
        key = sign, first, upper
        found = target.forms.get(key)
        if found is None:
            written = [_capital(each) if upper else each for each in target.targets]
            of_each = [self._forms(each, sign, first) for each in written]
            found = _allowed((form for forms in of_each for form in forms), options)
            target.forms[key] = found
        return found

    def _forms(self, phrase: str, sign: str, first: bool) -> tuple[tuple[int, ...], ...]:
        """The tokens of a phrase and a sign, inside a sentence or at the start of a text."""
        if first:
            found = tuple(self._encode(phrase + sign))
            return (found,) if found else ()
        anchors = [each for each in _ANCHORS if self._encode(each)]
        inside = [self._first_after(anchors, f" {phrase}{sign}")]
        if not joins("a", phrase):
            inside.append(self._first_after(anchors, phrase + sign))
        return self._starting(inside)

    def _written_as(self, token: int) -> str:
        """The text of a token; what is a part of a character counts as a letter."""
        return self._texts.decode([token]).strip().replace(_UNDECIDED, "a")

    def _is_sign(self, token: int) -> bool:
        """Whether a token has neither letters nor digits, but is written."""
        written = self.written_as(token)
        return bool(written) and not any(map(str.isalnum, written))

    def _sign_after(self, token: int) -> str:
        """The signs with which a token ends that is none itself; empty for none."""
        written = self.written_as(token)
        word = written.rstrip("".join(_AFTER))
        return written[len(word) :] if word else ""

    def _starting(self, phrases: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
        """The phrases that begin a word after another word; all if none does."""
        bounds, usable = self.boundaries, tuple(dict.fromkeys(each for each in phrases if each))
        found = tuple(each for each in usable if bounds is None or not bounds.continue_with(each))
        return found or usable

    def _first_after(self, anchors: Sequence[str], text: str) -> tuple[int, ...]:
        return next((tuple(found) for each in anchors if (found := self._after(each, text))), ())

    def _lacking(self, tokens: Sequence[int]) -> str:
        return " ".join(self._texts.target.piece(token) for token in tokens)


class WordBoundaries:
    """See ``required.Boundaries``; found by detokenizing a token beside a word."""

    def __init__(self, tokenizer: Tokenizer, word: str, alone: Sequence[int], inside: int) -> None:
        """Take a word.

        Args:
            tokenizer: of the target.
            word: the word.
            alone: its tokens.
            inside: the first of its tokens after another word.
        """
        self._tokenizer, self._alone, self._inside = tokenizer, list(alone), inside
        self._word, self._shown = word, tokenizer.decode(alone)
        self.continues, self.opens = cache(self._continues), cache(self._opens)

    def _continues(self, token: int) -> bool:
        """See ``Boundaries.continues``."""
        return self.continue_with((token,))

    def continue_with(self, tokens: Sequence[int]) -> bool:
        """Whether tokens, after a word, begin within that word."""
        text = self._tokenizer.decode([*self._alone, *tokens])
        after = text[len(self._shown) :] if text.startswith(self._shown) else ""
        return joins(self._shown, after) or after.startswith(_UNDECIDED)

    def _opens(self, token: int) -> bool:
        """See ``Boundaries.opens``."""
        text = self._tokenizer.decode([token, self._inside])
        last = self._tokenizer.decode([self._inside]).strip()
        before = text[: len(text) - len(last)] if last and text.endswith(last) else ""
        return joins(before, last)


class TermPlaces:
    """See ``required.Places`` and ``required.Checker``."""

    __slots__ = ("_found", "_options", "_requirements", "_text", "_tokens", "_words")

    def __init__(
        self,
        tokens: TermTokens,
        text: str,
        requirements: Sequence[_TermRequirement],
        found: Sequence[Occurrence],
        options: ResolvedOptions,
    ) -> None:
        """Take a source, its requirements, and the occurrences of their terms."""
        self._tokens, self._options = tokens, options
        self._text, self._requirements, self._found = text, requirements, found
        self._words: tuple[int, ...] | None = None

    def unmet(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """See ``Checker``."""
        return _unmet(self._requirements, self._tokens.decode(tokens))

    def words(self, ids: Sequence[int]) -> tuple[int, ...]:
        """See ``Places``."""
        if self._words is None:
            self._words = self._tokens.words_of(self._text, ids, self._options.framing)
        return self._words

    def sources(self, number: int) -> Sequence[tuple[int, int]]:
        """See ``Places``."""
        targets = self._requirements[number].target.targets
        return [(start, end) for term, start, end in self._found if term.targets == targets]

    def forms(self, number: int, sign: str, first: bool, upper: bool) -> Sequence[tuple[int, ...]]:
        """See ``Places``."""
        target = self._requirements[number].target
        return self._tokens.forms(target, sign, first, upper, self._options)

    def holds(self, number: int, tokens: Sequence[int]) -> bool:
        """See ``Places``."""
        once = self._requirements[number].target.requirement(number, 1)
        return not _unmet([once], self._tokens.decode(tokens))

    def is_sign(self, token: int) -> bool:
        """See ``Places``."""
        return self._tokens.is_sign(token)

    def is_upper(self, token: int) -> bool:
        """See ``Places``."""
        return self._tokens.written_as(token)[:1].isupper()

    def sign_after(self, token: int) -> str:
        """See ``Places``."""
        return self._tokens.sign_after(token)


def _counted(found: Iterable[Term]) -> dict[tuple[str, ...], int]:
    """The target phrases of terms, and how often each occurs."""
    counts: dict[tuple[str, ...], int] = {}  # a Counter takes several times as long
    for term in found:
        counts[term.targets] = counts.get(term.targets, 0) + 1
    return counts


def _unmet(requirements: Sequence[_TermRequirement], text: str) -> tuple[int, ...]:
    """The numbers of the requirements that a text does not meet."""
    words, unmet = None, list[int]()
    for each in requirements:
        phrases = each.target.phrases
        known = phrases.is_in(text)
        if known is None or (known and each.count > 1):
            words = words or split_words(text)
            known = phrases.count(words) >= each.count
        if not known:
            unmet.append(each.number)
    return tuple(unmet)


def _capital(phrase: str) -> str:
    return phrase[:1].upper() + phrase[1:]


def _allowed(
    phrases: Iterable[tuple[int, ...]], options: ResolvedOptions
) -> tuple[tuple[int, ...], ...]:
    given = dict.fromkeys(phrases)
    if not options.suppress_sequences:
        return tuple(each for each in given if options.never_inside.isdisjoint(each))
    return tuple(each for each in given if _why_banned(each, options) is None)


def _why_banned(phrase: Sequence[int], options: ResolvedOptions) -> Message | None:
    # Imported here, as below, because importing takes time, and few texts have terms.
    from tfexport.runtime.search.constrained import why_banned  # noqa: PLC0415

    return why_banned(phrase, options)


def check_supported(options: ResolvedOptions) -> None:
    """Refuse options that have no meaning for rows with required phrases.

    Raises:
        ConfigError: naming them.
    """
    from tfexport.runtime.search.constrained import unsupported  # noqa: PLC0415

    if problems := unsupported(options):
        raise ConfigError(join_problems(SUBJECT, problems))


GivenRequired = Sequence[Sequence[Sequence[Sequence[int]]] | None] | None


def required_of_rows(
    given: GivenRequired, count: int, size: int, options: ResolvedOptions
) -> list[Required | None]:
    """The required phrases of each row of a call.

    Args:
        given: for each row its requirements or None; a requirement is a list of phrases, of which
            one has to occur, and a phrase a list of ids. One that is given twice has to be met
            twice.
        count: the number of rows.
        size: of the target's vocabulary.
        options: how the rows are decoded.

    Raises:
        InputError: naming every row whose value is something else, or that options ban.
    """
    if given is None:
        return [None] * count
    rows = check_rows("required", given, "requirements, one for each row")
    if len(rows) != count:
        raise InputError(f"required: holds {len(rows)} for {count} rows")
    problems, found = list[Message](), list[Required | None]()
    for number, row in enumerate(rows):
        try:
            found.append(None if row is None else _read(row, size, options))
        except InputError as error:
            problems.append(Message(f"row {number}: ", error.message))
    if problems:
        raise InputError(join_problems("required", problems))
    return found


def _read(row: Any, size: int, options: ResolvedOptions) -> Required | None:
    counts, numbers = Counter[tuple[tuple[int, ...], ...]](), list[int]()
    listed = check_rows("required", row, "requirements")
    if len(listed) > MOST_REQUIRED:
        raise InputError(f"{len(listed)} requirements; at most {MOST_REQUIRED}")
    for number, requirement in enumerate(listed):
        phrases = [
            tuple(check_ids(phrase, size))
            for phrase in check_rows("required", requirement, "phrases of ids")
        ]
        if not phrases or not all(phrases):
            raise InputError("an empty phrase, or a requirement without any")
        banned = [_why_banned(phrase, options) for phrase in phrases]
        if None not in banned:
            raise InputError(Message(f"phrase {list(phrases[0])} ", banned[0] or ""))
        allowed = zip(phrases, banned, strict=True)
        usable = tuple(sorted({phrase for phrase, reason in allowed if reason is None}))
        if usable not in counts:
            numbers.append(number)
        counts[usable] += 1
    if not counts:
        return None
    pairs = zip(counts.items(), numbers, strict=True)
    return Required(tuple(
        Requirement(phrases, count=count, number=number) for (phrases, count), number in pairs
    ))  # fmt: skip
