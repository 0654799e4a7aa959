"""A translator of words with a known alignment, for tests of what is around it."""

import random
from collections.abc import Callable

import numpy as np

from tfexport.markup.alignment import Tokens
from tfexport.markup.document import Markup, Row
from tfexport.runtime.text.sentences import split_text

Order = Callable[[int, random.Random], list[int]]


def same(count: int, rng: random.Random) -> list[int]:
    return list(range(count))


def backwards(count: int, rng: random.Random) -> list[int]:
    return list(range(count))[::-1]


def shuffled(count: int, rng: random.Random) -> list[int]:
    return rng.sample(range(count), count)


def careless(count: int, rng: random.Random) -> list[int]:
    """Some words are left out, some are written twice, in any order."""
    return rng.choices(range(count), k=rng.randint(1, count + 2))


def upper(word: str) -> str:
    return word.upper()


def translated(text: str, order: Order = same, word: Callable[[str], str] = upper) -> Row:
    """A sentence in capitals, with its words in another order, which its text alone decides."""
    words = text.split(" ")
    places = order(len(words), random.Random(text))
    made = [word(words[place]) for place in places]
    attention = np.zeros((len(places), len(words)), np.float32)
    attention[np.arange(len(places)), places] = 1
    return Row(" ".join(made), Tokens(words, attention, lambda count: " ".join(made[:count])))


def translate(
    text: str, markup: Markup, order: Order = same, word: Callable[[str], str] = upper
) -> str:
    """A text with markup, by ``translated``."""
    document = markup.read(text)
    document.cut(lambda segment: split_text(segment, "en", "punctuation", "spaces"))
    rows = [
        translated(form.text, order, word) if form.worded else Row(form.text, kept=True)
        for form in document.forms
    ]
    return document.write(rows, document.choose(rows))
