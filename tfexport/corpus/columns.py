"""The columns of a row to decode and of its outcome, in Arrow tables."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tfexport.corpus.row_decoder import CorpusRow, RowResult
from tfexport.errors import Option, shown

Added = tuple[str, str, str]
ADDED: Added = ("translation", "score", "error")


@dataclass(frozen=True)
class Columns:
    """The names of the columns that are read and added.

    Attributes:
        text: the column with the texts.
        of_rows: columns with an option for each row; null and "" mean the option of the call.
        added: for translation, score and error.
        spell: writes options in problems.
    """

    text: str
    of_rows: tuple[str, ...]
    added: Added = ADDED
    spell: Callable[[Option], str] = field(default=str, compare=False)

    def taken(self, names: Iterable[str]) -> str | None:
        """The problem if the table already has one of the columns to add; else None."""
        present = {*names}
        if not (found := [name for name in self.added if name in present]):
            return None
        listed = ", ".join(map(repr, found))
        option = self.spell(Option("output_column"))
        return f"already has the output columns {listed}; choose other names with {option}"


def added_columns(output_column: str | None) -> Added:
    """The names of the columns that are added: the usual ones, or derived from the caller's."""
    if output_column is None:
        return ADDED
    return output_column, f"{output_column}_score", f"{output_column}_error"


def row_of(values: Mapping[str, Any], number: int, columns: Columns) -> CorpusRow:
    """A row to decode, from a row of a table."""
    languages = {name: values.get(name) or None for name in columns.of_rows}
    wrong = [
        name for name, value in languages.items() if value is not None and type(value) is not str
    ]
    if columns.text not in values:
        return CorpusRow(None, number, problem=f"has no {columns.text!r}")
    if wrong:
        text = "; ".join(f"{name}: {shown(languages[name])} is not a string" for name in wrong)
        return CorpusRow(None, number, problem=text)
    return CorpusRow(values[columns.text], number, **languages)


_TYPES = (pa.string(), pa.float64(), pa.string())


def schema_problems(schema: pa.Schema, columns: Columns) -> Iterator[str]:
    """The problems of a table that cannot be decoded, a sentence each."""
    names = list(schema.names)
    if columns.text not in names:
        yield f"has no column {columns.text!r}; it has {', '.join(map(repr, names)) or 'none'}"
    if twice := sorted({name for name in names if names.count(name) > 1}):
        yield f"has several columns named {', '.join(map(repr, twice))}"
    for name in (columns.text, *columns.of_rows):
        if names.count(name) == 1 and not _is_text(schema.field(name).type):
            yield f"column {name!r} has type {schema.field(name).type}; expected text"
    if taken := columns.taken(names):
        yield taken


def _is_text(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return pa.types.is_null(kind) or any(is_text(kind) for is_text in texts)


def rows_of(table: pa.Table, columns: Columns, first: int = 0) -> list[CorpusRow]:
    """The rows of a table, numbered from ``first``."""
    counted = (columns.text, *columns.of_rows)
    read = {name: _texts(table[name]) for name in counted if name in table.column_names}
    return [
        row_of({name: values[place] for name, values in read.items()}, first + place, columns)
        for place in range(table.num_rows)
    ]


def _texts(values: pa.ChunkedArray) -> list[str | bytes | None]:
    """The texts of a column; bytes if they are not UTF-8, which Arrow does not check."""
    if pa.types.is_dictionary(values.type):
        values = pc.cast(values, values.type.value_type)
    try:
        return list(values.to_pylist())
    except UnicodeDecodeError:
        raw = pc.cast(values, pa.large_binary()).to_pylist()
        return [_decoded(value) for value in raw]


def _decoded(value: bytes | None) -> str | bytes | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return value


def with_results(table: pa.Table, decoded: Sequence[RowResult], added: Added) -> pa.Table:
    """The table with columns for translation, score and error."""
    values = (
        [row.translation for row in decoded],
        [row.score for row in decoded],
        [row.error for row in decoded],
    )
    for name, kind, column in zip(added, _TYPES, values, strict=True):
        table = table.append_column(name, pa.array(column, kind))
    return table
