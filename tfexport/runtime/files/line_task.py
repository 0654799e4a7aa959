"""The task of decoding a file's lines and writing them."""

import os
from dataclasses import dataclass

from tfexport.runtime.files.line_format import LineFormat
from tfexport.runtime.search import ResolvedOptions


@dataclass(frozen=True)
class LineTask:
    """Everything that an output's lines depend on besides their source and the bundle.

    Attributes:
        options: of decoding.
        line_format: of the output; it says too whether lines are ids.
        prefix: beginning of every target.
        prefix_file: or a line for each line of the source.
    """

    options: ResolvedOptions
    line_format: LineFormat
    prefix: tuple[int, ...] = ()
    prefix_file: str | os.PathLike[str] | None = None
