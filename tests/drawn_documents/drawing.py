"""What drawn documents are made of: words, placeholders and what stays letter for letter.

A word that is to be translated begins with ``wo``, one that has to stay with ``ke``, the name of a
placeholder with ``pe``; each is in a document once. So a judge knows them by themselves.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

from tests.support.paths import REPOSITORY

_SYLLABLES = [first + second for first in "bdfgklmnrtvz" for second in ("a", "o", "i", "an", "or")]
_ENDS = (".", ".", ".", "!", "?", "")
_FILE_FORMATS = {"xliff": "xml", "ts": "xml", "strings": "xml", "arb": "json-strings"}
Wrap = Callable[[str], str]


@dataclass
class Drawn:
    """A document, and what a judge has to know of it.

    Attributes:
        seed: of the draw.
        format: of the document.
        content: the document.
        literals: the placeholders that it has.
        kept: what has to be in its translation as often.
        same: whether a translator that copies gives the same bytes.
    """

    seed: int
    format: str
    content: str = ""
    literals: set[str] = field(default_factory=set)
    kept: list[str] = field(default_factory=list)
    same: bool = True

    @property
    def file_format(self) -> str:
        """The one of ``--format`` for it."""
        return _FILE_FORMATS.get(self.format, self.format)


class Draw:
    """Draws words, sentences and placeholders for one document.

    Attributes:
        rng: of the document.
        drawn: the document.
        worded: whether it has anything to translate.
    """

    def __init__(self, seed: int, kind: str, german: bool = False) -> None:
        self.rng = random.Random(f"{seed} {kind}")
        self.drawn = Drawn(seed, kind)
        self.worded = german or self.rng.random() > 0.06
        self._german = german
        self._used = set[str]()

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def name(self, start: str) -> str:
        """A word that this document does not have yet."""
        while True:
            word = start + "".join(self.rng.choices(_SYLLABLES, k=self.rng.randint(1, 3)))
            if word not in self._used:
                self._used.add(word)
                return word

    def kept(self, form: str = "{}") -> str:
        """What has to stay, with a word of its own in place of ``{}``."""
        text = form.replace("{}", self.name("ke"))
        self.drawn.kept.append(text)
        return text

    def literal(self, forms: Sequence[str]) -> str:
        """A placeholder, of which a sentence is the only one to have the name."""
        text = self.rng.choice(forms).replace("~", self.name("pe"))
        self.drawn.literals.add(text)
        return text

    def words(self) -> list[str]:
        """The words of a sentence; none of a document that has nothing to translate."""
        if not self.worded:
            return [str(self.rng.randint(2, 99)) for _ in range(self.rng.randint(1, 2))]
        if self._german:
            return self.rng.choice(_german()).split()
        return [self.name("wo") for _ in range(self.rng.randint(2, 7))]

    def sentence(self, forms: Sequence[str], wraps: Sequence[Wrap] = (), end: bool = True) -> str:
        """Words, with placeholders between them, some of them within inline markup.

        Args:
            forms: of placeholders.
            wraps: of inline markup.
            end: whether a mark ends it.
        """
        parts = list[str]()
        for word in self.words():
            if forms and self.chance(0.12):
                parts.append(self.literal(forms))
            parts.append(word)
        if forms and self.chance(0.1):
            parts.append(self.literal(forms))
        while wraps and self.chance(0.35):
            begin = self.rng.randrange(len(parts))
            stop = min(len(parts), begin + self.rng.randint(1, 3))
            parts[begin:stop] = [self.rng.choice(wraps)(" ".join(parts[begin:stop]))]
        text = " ".join(parts)
        return text if self._german or not end else text + self.rng.choice(_ENDS)

    def text(self, forms: Sequence[str], wraps: Sequence[Wrap] = ()) -> str:
        """One to three sentences."""
        return " ".join(self.sentence(forms, wraps) for _ in range(self.rng.choice((1, 1, 2, 3))))

    def some(self, *parts: Callable[[], str], least: int = 2, most: int = 6) -> list[str]:
        """What some of the given functions draw."""
        count = self.rng.randint(least, most)
        return [self.rng.choice(parts)() for _ in range(count)]


@cache
def _german() -> list[str]:
    """Sentences that the demo model knows."""
    lines = (REPOSITORY / "examples" / "de-en" / "test.tsv").read_text(encoding="utf-8")
    return [line.split("\t")[0] for line in lines.splitlines()]


# Forms of placeholders; "~" is a name.
NAMED = (
    "{~}", "{{ ~ }}", "{{~}}", "${~}", "%(~)s", "%{~}", "https://example.com/~?a=1",
    "~@example.com", "{~}@example.com",
)  # fmt: skip
PLAIN = (
    "%s",
    "%d",
    "%1$s",
    "%2$d",
    "{0}",
    "{1}",
    "%@",
    "%d%%",
    "%s_%s",
    "\N{PARTY POPPER}",
    "%.2f",
)
ALL = (*NAMED, *PLAIN)
