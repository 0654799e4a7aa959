"""Pieces of source text, put together."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from textwrap import dedent, indent


def block(text: str) -> str:
    """A piece of source, without its common indentation and blank ends."""
    return dedent(text).strip("\n")


def inside(lines: Iterable[str], levels: int = 2) -> str:
    """Pieces of source, as a body of so many levels."""
    return indent("\n".join(line for line in lines if line), "    " * levels)


def class_text(name: str, arguments: str, init: Iterable[str], methods: Iterable[str]) -> str:
    """A class of torch modules.

    Args:
        name: of the class.
        arguments: of ``__init__``, after ``self``.
        init: lines of ``__init__``.
        methods: whole methods, not indented.
    """
    head = f"class {name}(nn.Module):\n    def __init__(self{arguments and ', '}{arguments}):\n"
    body = inside(["super().__init__()", *init])
    return "\n\n".join([head + body, *(indent(method, "    ") for method in methods)])


def method(name: str, arguments: Iterable[str], lines: Iterable[str]) -> str:
    """A method, not indented."""
    return f"def {name}({', '.join(['self', *arguments])}):\n{inside(lines, 1)}"


@dataclass
class Piece:
    """A part of a forward, and what it needs.

    Attributes:
        init: lines of ``__init__``.
        lines: of the forward.
        classes: helper classes and functions, by name.
    """

    init: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    classes: dict[str, str] = field(default_factory=dict)

    def add(self, other: "Piece") -> None:
        """Put another part behind this one."""
        self.init += other.init
        self.lines += other.lines
        self.classes.update(other.classes)
