"""The task of decoding a file's lines and writing them."""

import os
from dataclasses import dataclass

from tfexport.runtime.files.line_format import LineFormat
from tfexport.runtime.search import ResolvedOptions


@dataclass(frozen=True)
class LineTask:
    """Decoding options, prefixes and output format of a run over a file.

    Attributes:
        options: resolved decoding options.
        line_format: of the output; its ``ids`` holds for the input too.
        prefix: the forced beginning of every target.
        prefix_file: or a file with a prefix for each line of the source.
    """

    options: ResolvedOptions
    line_format: LineFormat
    prefix: tuple[int, ...] = ()
    prefix_file: str | os.PathLike[str] | None = None
