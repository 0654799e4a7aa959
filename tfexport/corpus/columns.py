"""The columns that a row is decoded by, and those that its outcome goes into."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tfexport.corpus.row_decoder import Row
from tfexport.errors import Option, shown

Added = tuple[str, str, str]
ADDED: Added = ("translation", "score", "error")


@dataclass(frozen=True)
class Columns:
    """The columns that count.

    Attributes:
        text: with the texts.
        of_rows: that stand for an option in their own row, which null and "" leave to the option.
        added: for translation, score and error.
        spell: writes options in problems.
    """

    text: str
    of_rows: tuple[str, ...]
    added: Added = ADDED
    spell: Callable[[Option], str] = field(default=str, compare=False)

    def taken(self, names: Iterable[str]) -> str | None:
        """The problem of a column that has a name which is to be added; None if none has."""
        present = {*names}
        if not (found := [name for name in self.added if name in present]):
            return None
        listed = ", ".join(map(repr, found))
        option = self.spell(Option("output_column"))
        return f"has {listed} already, where the result goes; name its columns with {option}"


def added_columns(output_column: str | None) -> Added:
    """The names of the columns that are added: the usual ones, or made of one's own."""
    if output_column is None:
        return ADDED
    return output_column, f"{output_column}_score", f"{output_column}_error"


def row_of(values: Mapping[str, Any], number: int, columns: Columns) -> Row:
    """A row to decode, from a row of a table."""
    told = {name: values.get(name) or None for name in columns.of_rows}
    wrong = [name for name, value in told.items() if value is not None and type(value) is not str]
    if columns.text not in values:
        return Row(None, number, problem=f"has no {columns.text!r}")
    if wrong:
        text = "; ".join(f"{name}: {shown(told[name])} is not a text" for name in wrong)
        return Row(None, number, problem=text)
    return Row(values[columns.text], number, **told)
