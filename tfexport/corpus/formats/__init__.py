"""The file formats of a corpus."""

from collections.abc import Mapping

from tfexport.corpus.formats.lines import JsonLines, TextLines
from tfexport.corpus.formats.parquet import Parquet
from tfexport.corpus.formats.separated import Separated
from tfexport.corpus.pieces import Format

FORMATS: Mapping[str, Format] = {
    found.name: found
    for found in (
        TextLines(), JsonLines(), Parquet(),
        Separated("csv", ",", quoted=True), Separated("tsv", "\t", quoted=False),
    )
}  # fmt: skip
