"""Required phrases: which sequences of tokens meet them, followed token by token.

Source of the automaton: Aho and Corasick 1975, "Efficient string matching".
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Protocol

Tokens = tuple[int, ...]
# Before the first token of a row, and after a token that later ones are written onto.
_START, _GLUED = -1, -2
_MOST_STATES = 5_000  # that are looked at for the least number of tokens


class Boundaries(Protocol):
    """Where words of the target's texts begin and end."""

    def continues(self, token: int) -> bool:
        """Whether a token, after a word, belongs to that word."""

    def opens(self, token: int) -> bool:
        """Whether a word after this token belongs to this token's word."""


class Checker(Protocol):
    """Finds what tokens do not meet, in another way than token by token: in their text."""

    def unmet(self, tokens: Sequence[int]) -> Tokens:
        """The number of each requirement that tokens do not meet."""


class Places(Protocol):
    """Where requirements come from in the source, and how they are put into a translation."""

    def words(self, ids: Sequence[int]) -> Tokens:
        """The word of each source token; -1 for special tokens.

        Args:
            ids: the tokens.
        """

    def sources(self, number: int) -> Sequence[tuple[int, int]]:
        """The first source word of each occurrence of a requirement, and the one after the last."""

    def forms(self, number: int, sign: str, first: bool, upper: bool) -> Sequence[Tokens]:
        """Ways of writing a requirement before a sign, the sign included.

        Args:
            number: the number of the requirement.
            sign: punctuation that is written to the word before it; empty for none.
            first: whether it comes before all other tokens.
            upper: whether it has a capital letter there; only with ``first``.
        """

    def holds(self, number: int, tokens: Sequence[int]) -> bool:
        """Whether tokens have a phrase of a requirement."""

    def is_sign(self, token: int) -> bool:
        """Whether a token has neither letters nor digits, but is written."""

    def is_upper(self, token: int) -> bool:
        """Whether a token begins with a capital letter."""

    def sign_after(self, token: int) -> str:
        """The signs with which a token ends that is none itself; empty for none."""


@dataclass(frozen=True)
class Requirement:
    """Phrases of which one has to occur.

    Attributes:
        phrases: sequences of tokens, none of them empty.
        first: sequences that count only before all other tokens of a row.
        count: occurrences, which do not overlap, of any of the phrases.
        number: by which it is reported if it is not met.
    """

    phrases: tuple[Tokens, ...]
    first: tuple[Tokens, ...] = ()
    count: int = 1
    number: int = 0

    @property
    def shortest(self) -> int:
        """Tokens that it takes at least."""
        return self.count * min(map(len, self.phrases))


@dataclass(frozen=True)
class Required:
    """The phrases that the target of a row has to contain.

    Attributes:
        requirements: all of them have to be met.
        boundaries: if given, a phrase has to begin and end where words do.
        checker: finds what tokens do not meet; None to look at them token by token.
        places: where in the source they come from, and how they are put into a translation; None
            if unknown.
    """

    requirements: tuple[Requirement, ...]
    boundaries: Boundaries | None = None
    checker: Checker | None = field(default=None, compare=False)
    places: "Places | None" = field(default=None, compare=False)

    @cached_property
    def progress(self) -> "Progress":
        """How far tokens meet all requirements."""
        return Progress(self)

    def unmet(self, tokens: Sequence[int]) -> Tokens:
        """The number of each requirement that tokens do not meet."""
        if self.checker is not None:
            return self.checker.unmet(tokens)
        return tuple(
            requirement.number
            for requirement in self.requirements
            if not Progress(Required((requirement,), self.boundaries)).is_met_by(tokens)
        )


class _Matcher:
    """One requirement, followed token by token.

    A state is the longest end of the tokens so far that begins a phrase, and the number of
    occurrences that are still missing. A complete phrase counts once a token follows that does not
    continue its last word; at the end of a row it counts as well.
    """

    def __init__(self, requirement: Requirement, boundaries: Boundaries | None) -> None:
        self._boundaries = boundaries
        of_start = tuple((_START, *phrase) for phrase in requirement.first)
        self._phrases = frozenset(requirement.phrases + of_start)
        self._begun = {phrase[:end] for phrase in self._phrases for end in range(1, len(phrase))}
        self._begun |= self._phrases
        if of_start:
            self._begun.add((_START,))
        self._shortest = min(map(len, requirement.phrases))
        self.tokens = frozenset(token for phrase in self._phrases for token in phrase) - {_START}
        self.start: tuple[Tokens, int] = ((_START,) if of_start else (), requirement.count)
        self.missing = cache(self._missing)
        self.next_tokens = cache(self._next_tokens)

    def _opens(self, token: int) -> bool:
        if token == _GLUED:
            return True
        return token >= 0 and self._boundaries is not None and self._boundaries.opens(token)

    def _ends(self, path: Tokens) -> list[Tokens]:
        """The path, and its ends that may begin a phrase; longest first, the empty one last."""
        found, place = [path], 0
        while place < len(path):
            place += 1
            while place < len(path) and self._opens(path[place - 1]):
                place += 1
            if place < len(path) or not self._opens(path[-1]):
                found.append(path[place:])
        return found

    def is_complete(self, path: Tokens) -> bool:
        """Whether a phrase ends with the path."""
        return any(end in self._phrases for end in self._ends(path))

    def step(self, state: tuple[Tokens, int], token: int) -> tuple[Tokens, int]:
        """The state after a token."""
        path, left = state
        if not left:
            return (), 0
        if not path and token not in self.tokens and not self._opens(token):
            return state
        bounds = self._boundaries
        if bounds is not None and self.is_complete(path) and not bounds.continues(token):
            path, left = (), left - 1
            if not left:
                return (), 0
        # After a token that is written onto the next one, nothing begins.
        longer = (*path, token)
        path = next((end for end in self._ends(longer) if end in self._begun), ())
        if not path and self._opens(token):
            path = (_GLUED,)
        if self._boundaries is None and self.is_complete(path):
            path, left = (), left - 1
        return path, left

    def _missing(self, state: tuple[Tokens, int]) -> int:
        """Tokens that are missing at least."""
        path, left = state
        if left and self.is_complete(path):
            left -= 1
            path = ()
        if not left:
            return 0
        ends = [end for end in self._ends(path) if end]
        rest = min(
            [self._shortest]
            + [
                len(phrase) - len(end)
                for end in ends
                for phrase in self._phrases
                if len(phrase) > len(end) and phrase[: len(end)] == end
            ]
        )
        return rest + (left - 1) * self._shortest

    def _next_tokens(self, state: tuple[Tokens, int]) -> set[int]:
        """Tokens that begin a phrase or go on with one; none if nothing is missing."""
        path, left = state
        if not left or (left == 1 and self.is_complete(path)):
            return set()
        ends = set(self._ends(path))
        return {begun[-1] for begun in self._begun if begun[:-1] in ends} - {_START}


_States = tuple[tuple[Tokens, int], ...]  # of all requirements


class _Steps(dict[int, int]):
    """The state after each symbol; found when it is first asked for."""

    def __init__(self, progress: "Progress", states: _States) -> None:
        super().__init__()
        self._progress, self._states = progress, states

    def __missing__(self, symbol: int) -> int:
        self[symbol] = found = self._progress.follow(self._states, symbol)
        return found


class _Symbols(dict[int, int]):
    """The symbol of each token: itself if a phrase has it, else one for all tokens of its kind."""

    def __init__(self, of_phrases: Iterable[int], boundaries: Boundaries | None) -> None:
        super().__init__((token, token) for token in of_phrases)
        self._boundaries, self._kinds = boundaries, dict[tuple[bool, bool], int]()

    def __missing__(self, token: int) -> int:
        kind = (False, False)
        if self._boundaries is not None:
            kind = (self._boundaries.continues(token), self._boundaries.opens(token))
        self[token] = symbol = self._kinds.setdefault(kind, token)
        return symbol


class Progress:
    """How far tokens meet all requirements of a row; states are numbers.

    Attributes:
        start: the state before the first token.
        symbols: the symbol of each token.
        steps: for each state, the state after each symbol.
        missing: for each state, the tokens that are missing at least if no phrases overlap.
        next_tokens: for each state, the tokens that begin a missing phrase, or go on with one.
    """

    def __init__(self, required: Required) -> None:
        self._matchers = [_Matcher(each, required.boundaries) for each in required.requirements]
        sets = [matcher.tokens for matcher in self._matchers]
        self._alphabet = frozenset[int]().union(*sets)
        self._shared = len(self._alphabet) < sum(map(len, sets))  # phrases may overlap
        self.symbols = _Symbols(self._alphabet, required.boundaries)
        self._numbers: dict[_States, int] = {}
        self._states: list[_States] = []
        self._least: dict[int, int] = {}
        self.steps: list[_Steps] = []
        self.missing: list[int] = []
        self.next_tokens: list[tuple[int, ...]] = []
        self.start = self._number(tuple(matcher.start for matcher in self._matchers))

    def _number(self, states: _States) -> int:
        if states not in self._numbers:
            self._numbers[states] = len(self._states)
            self._states.append(states)
            self.steps.append(_Steps(self, states))
            pairs = list(zip(self._matchers, states, strict=True))
            self.missing.append(sum(matcher.missing(state) for matcher, state in pairs))
            found = set[int]().union(*(matcher.next_tokens(state) for matcher, state in pairs))
            self.next_tokens.append(tuple(sorted(found)))
        return self._numbers[states]

    def follow(self, states: _States, symbol: int) -> int:
        """The number of the state after a symbol."""
        return self._number(tuple(
            matcher.step(state, symbol)
            for matcher, state in zip(self._matchers, states, strict=True)
        ))  # fmt: skip

    def after(self, tokens: Iterable[int], state: int | None = None) -> int:
        """The state after tokens, from the start or another state."""
        found = self.start if state is None else state
        for token in tokens:
            found = self.steps[found][self.symbols[token]]
        return found

    def is_met_by(self, tokens: Iterable[int]) -> bool:
        """Whether tokens meet all requirements."""
        return not self.missing[self.after(tokens)]

    def fits(self, state: int, room: int) -> bool:
        """Whether so many tokens suffice for what is missing."""
        if self.missing[state] <= room:
            return True
        if not self._shared:
            return False
        if state not in self._least:
            self._least[state] = self._search(state)
        return self._least[state] <= room

    def _search(self, state: int) -> int:
        """The least number of tokens that meet what is missing, where phrases overlap."""
        seen, waiting = {state}, deque([(state, 0)])
        while waiting:
            found, length = waiting.popleft()
            if not self.missing[found]:
                return length
            for token in self.next_tokens[found]:
                then = self.steps[found][token]
                if then not in seen:
                    seen.add(then)
                    waiting.append((then, length + 1))
            if len(seen) > _MOST_STATES:
                break
        return self.missing[state]
