"""The columns that a row is decoded by: its text, and where it has them, languages and a prefix."""

from collections.abc import Mapping
from typing import Any

from tfexport.corpus.row_decoder import Row
from tfexport.errors import shown

# Columns that stand for an option in their own row; null and "" leave it to the option.
OF_ROWS = ("source_language", "target_language", "target_prefix")


def row_of(values: Mapping[str, Any], number: int, column: str) -> Row:
    """A row to decode, from a row of a table."""
    told = {name: values.get(name) or None for name in OF_ROWS}
    wrong = [name for name, value in told.items() if value is not None and type(value) is not str]
    if column not in values:
        return Row(None, number, problem=f"has no {column!r}")
    if wrong:
        text = "; ".join(f"{name}: {shown(told[name])} is not a text" for name in wrong)
        return Row(None, number, problem=text)
    return Row(values[column], number, **told)
