"""What a judge compares: the texts of a document."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Unit:
    """A text of a document.

    Attributes:
        place: what is before it, or where it is.
        source: what it has to be a translation of.
        whole: what a report names if it stays.
        text: the text.
        inline: its inline elements.
    """

    place: str
    source: str
    text: str
    inline: Counter[str] = field(default_factory=Counter)
    whole: tuple[str, ...] = ()
