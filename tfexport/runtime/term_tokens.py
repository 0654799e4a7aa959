"""Terms as tokens of a bundle's target: what a search has to find, and what a text has met."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache, cached_property, lru_cache
from typing import Any, NamedTuple

from tfexport.bundle import Manifest
from tfexport.errors import ConfigError, InputError, Message, join_problems, shown
from tfexport.runtime.options import SUBJECT
from tfexport.runtime.results import Term
from tfexport.runtime.search.request import ResolvedOptions
from tfexport.runtime.search.required import Required, Requirement
from tfexport.runtime.terms import Occurrence, Phrases, joins, split_words
from tfexport.runtime.text.codec import TextCodec, check_ids, check_rows
from tfexport.runtime.text.tokenizer import Tokenizer

_CACHED = 10_000  # phrases
# Words before a phrase, to see how it is written inside a sentence; the first that the vocabulary
# has is taken.
_ANCHORS = ("a", "e", "и", "α", "ا", "の", "的", "1", ",")
_AFTER = (".", ",", "?", "!", ":", ";", '"', "'", ")", "。", "、", "，")
_UNDECIDED = "\ufffd"  # written by tokenizers for incomplete UTF-8 bytes
MOST_REQUIRED = 64  # requirements of a row
_Counts = tuple[tuple[tuple[str, ...], int], ...]  # target phrases, and how often they are needed


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


class _Usable(NamedTuple):
    """The tokens of target phrases, as of ``_Written``, that options allow.

    Attributes:
        inside: inside a sentence.
        first: at the start of a text.
        problems: of phrases that cannot be written, or are banned.
    """

    inside: tuple[tuple[int, ...], ...]
    first: tuple[tuple[int, ...], ...]
    problems: tuple[Message, ...]


class TermTokens:
    """Makes requirements of terms, for one bundle."""

    def __init__(self, manifest: Manifest, texts: TextCodec) -> None:
        self._texts = texts
        self._unk, self._size = manifest.special_ids.unk, manifest.limits.target_vocab_size
        self._written = lru_cache(_CACHED)(self._write)
        self._phrases = lru_cache(_CACHED)(self._find_phrases)
        self._usable: dict[tuple[object, ...], _Usable] = {}
        self._forms_of: dict[tuple[object, ...], tuple[tuple[int, ...], ...]] = {}
        self.decode = texts.decode
        self.written_as = lru_cache(_CACHED)(self._written_as)
        self.is_sign = lru_cache(_CACHED)(self._is_sign)
        self.sign_after = lru_cache(_CACHED)(self._sign_after)

    def required(
        self,
        found: Sequence[Occurrence],
        options: ResolvedOptions,
        words: Callable[[], tuple[int, ...]] | None = None,
    ) -> Required:
        """The phrases that a target has to contain.

        Args:
            found: the occurrences of terms in the source.
            options: how it is decoded.
            words: gives the word of each source token; see ``Places``. None if phrases cannot be
                placed.

        Raises:
            InputError: naming target phrases that the vocabulary lacks, or that options ban.
        """
        places = TermPlaces(self, found, words, options)
        if len(places.terms) > MOST_REQUIRED:
            raise InputError(
                f"holds {len(places.terms)} different terms; at most {MOST_REQUIRED}: split the "
                "text"
            )
        problems = list[Message]()
        requirements = list[Requirement]()
        for targets, count in places.terms:
            usable, starting, wrong = self._usable_of(targets, options)
            problems += wrong
            if usable:
                requirements.append(Requirement(usable, starting, count, len(requirements)))
        if problems:
            raise InputError(join_problems("terms", problems))
        unmet_in, known = places.unmet_in, None if words is None else places
        return Required(tuple(requirements), self.boundaries, unmet_in, known)

    def _usable_of(self, targets: tuple[str, ...], options: ResolvedOptions) -> _Usable:
        """The tokens of target phrases that options allow; kept for further texts."""
        key = (targets, options.never_inside, options.suppress_sequences)
        known = self._usable.get(key)
        if known is None:
            if len(self._usable) >= _CACHED:
                self._usable.clear()
            known = self._usable[key] = self._find_usable(targets, options)
        return known

    def _find_usable(self, targets: tuple[str, ...], options: ResolvedOptions) -> _Usable:
        problems = list[Message]()
        inside, first = list[tuple[int, ...]](), list[tuple[int, ...]]()
        for target in targets:
            try:
                written = self._written(target)
            except InputError as error:
                problems.append(Message(f"target phrase {target!r} ", error.message))
                continue
            reason = _why_banned(written.inside[0], options)
            if reason is not None:
                problems.append(Message(f"target phrase {target!r} ", reason))
            inside += written.inside
            first += written.first
        return _Usable(_allowed(inside, options), _allowed(first, options), tuple(problems))

    def unmet(self, found: Sequence[Term], text: str) -> tuple[Term, ...]:
        """The terms, of those found in a source, that its translation does not meet."""
        counts = _counted(found)
        firsts = {term.targets: term for term in reversed(found)}
        return tuple(firsts[counts[place][0]] for place in self.missing(counts, text))

    def missing(self, terms: _Counts, text: str) -> tuple[int, ...]:
        """Which terms a translation does not meet."""
        words, missing = None, list[int]()
        for place, (targets, count) in enumerate(terms):
            phrases = self._phrases(targets)
            known = phrases.is_in(text)
            if known is None or (known and count > 1):
                words = words or split_words(text)
                known = phrases.count(words) >= count
            if not known:
                missing.append(place)
        return tuple(missing)

    def _find_phrases(self, targets: tuple[str, ...]) -> Phrases:
        texts = [text for target in targets for text in self._written(target).texts]
        return Phrases.of((text, 0) for text in texts)

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

    def holds(self, targets: tuple[str, ...], tokens: Sequence[int]) -> bool:
        """Whether tokens have one of several target phrases."""
        return not self.missing(((targets, 1),), self._texts.decode(tokens))

    def allowed_forms(
        self,
        targets: tuple[str, ...],
        sign: str,
        first: bool,
        upper: bool,
        options: ResolvedOptions,
    ) -> tuple[tuple[int, ...], ...]:
        """Ways of writing target phrases that options allow; see ``required.Places``."""
        key = (targets, sign, first, upper, options.never_inside, options.suppress_sequences)
        found = self._forms_of.get(key)
        if found is None:
            if len(self._forms_of) >= _CACHED:
                self._forms_of.clear()
            written = [_capital(target) if upper else target for target in targets]
            of_each = [self._forms(each, sign, first) for each in written]
            found = _allowed((form for forms in of_each for form in forms), options)
            self._forms_of[key] = found
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
    """See ``required.Places``.

    Attributes:
        terms: the target phrases of terms, in the order of their requirements.
    """

    __slots__ = ("_find_words", "_found", "_options", "_tokens", "_words", "terms")

    def __init__(
        self,
        tokens: TermTokens,
        found: Sequence[Occurrence],
        words: Callable[[], tuple[int, ...]] | None,
        options: ResolvedOptions,
    ) -> None:
        """Take the occurrences of terms; see ``TermTokens.required``."""
        self._tokens, self._options, self._find_words = tokens, options, words
        self._found = found
        self._words: tuple[int, ...] | None = None
        self.terms = _counted([each.term for each in found])

    def unmet_in(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """See ``Required``."""
        return self._tokens.missing(self.terms, self._tokens.decode(tokens))

    @property
    def words(self) -> tuple[int, ...]:
        """See ``Places``."""
        if self._words is None:
            self._words = self._find_words() if self._find_words is not None else ()
        return self._words

    def sources(self, number: int) -> Sequence[tuple[int, int]]:
        """See ``Places``."""
        targets = self.terms[number][0]
        return [(start, end) for term, start, end in self._found if term.targets == targets]

    def forms(self, number: int, sign: str, first: bool, upper: bool) -> Sequence[tuple[int, ...]]:
        """See ``Places``."""
        return self._tokens.allowed_forms(
            self.terms[number][0], sign, first, first and upper, self._options
        )

    def holds(self, number: int, tokens: Sequence[int]) -> bool:
        """See ``Places``."""
        return self._tokens.holds(self.terms[number][0], tokens)

    def is_sign(self, token: int) -> bool:
        """See ``Places``."""
        return self._tokens.is_sign(token)

    def is_upper(self, token: int) -> bool:
        """See ``Places``."""
        return self._tokens.written_as(token)[:1].isupper()

    def sign_after(self, token: int) -> str:
        """See ``Places``."""
        return self._tokens.sign_after(token)


def _counted(found: Sequence[Term]) -> _Counts:
    """The target phrases of terms, and how often each occurs."""
    counts: dict[tuple[str, ...], int] = {}  # a Counter takes several times as long
    for term in found:
        counts[term.targets] = counts.get(term.targets, 0) + 1
    return tuple(counts.items())


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
