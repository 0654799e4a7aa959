"""The columns that a row is decoded by: its text, and where it has them, languages and a prefix."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tfexport.corpus.row_decoder import Row
from tfexport.errors import shown


@dataclass(frozen=True)
class Columns:
    """The columns that count.

    Attributes:
        text: with the texts.
        of_rows: that stand for an option in their own row, which null and "" leave to the option.
    """

    text: str
    of_rows: tuple[str, ...]


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
