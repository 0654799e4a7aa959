"""The preprocessing of a bundle: a file of sound or a picture becomes a row of the model's inputs.

Another kind is a class with the two methods of ``Preprocessor``, its keys in
``tfexport.preprocessing``, and its place in ``open_preprocessor``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

from tfexport.errors import InputError, Message, shown, system_reason
from tfexport.preprocessing import MEDIA
from tfexport.runtime.media.limits import MediaLimits

Inputs = Mapping[str, NDArray[Any]]


class Preprocessor(Protocol):
    """Makes inputs of a model of files."""

    @classmethod
    def of(cls, part: Mapping[str, Any], limits: MediaLimits) -> Preprocessor:
        """Make it of the part of a manifest, which was checked."""

    def inputs(self, item: Any) -> Inputs:
        """The inputs of one row, without the batch axis.

        Args:
            item: the path of a file, its bytes, or what the kind takes besides.

        Raises:
            InputError: it cannot be read, or is beyond the limits.
            OSError: it cannot be opened.
        """


def open_preprocessor(part: Mapping[str, Any] | None, limits: MediaLimits) -> Preprocessor | None:
    """Make the preprocessor of a manifest; None if the manifest has none."""
    if part is None:
        return None
    # Imported here, since most bundles read text, and importing takes time.
    from tfexport.runtime.media.pictures import Picture  # noqa: PLC0415
    from tfexport.runtime.media.sound_features import (  # noqa: PLC0415
        FilterBanks,
        LogMel,
        Waveform,
    )

    kinds: Mapping[str, type[Preprocessor]] = {
        "log_mel": LogMel,
        "waveform": Waveform,
        "filter_banks": FilterBanks,
        "picture": Picture,
    }
    return kinds[part["kind"]].of(part, limits)


class Files(NamedTuple):
    """Rows of files of one bundle.

    Attributes:
        preprocessor: None if the bundle has none.
        key: of the rows that it reads, "audio" or "image"; None without a preprocessor.
        names: of the model's inputs.
    """

    preprocessor: Preprocessor | None
    key: str | None
    names: frozenset[str]

    def prepare(self, row: Any) -> Any:
        """Replace a row's file by the inputs that are made of it.

        Raises:
            InputError: it cannot be read, or the bundle does not read such files.
        """
        if not isinstance(row, Mapping):
            return row
        given = [key for key in dict.fromkeys(MEDIA.values()) if key in row]
        given = [key for key in given if key not in self.names]
        if not given:
            return row
        others = {key: value for key, value in row.items() if key not in given}
        if self.preprocessor is None or given != [self.key]:
            reads = "no files" if self.key is None else f"files as {self.key!r}"
            taken = ", ".join(sorted(self.names))
            raise InputError(Message(
                f"{shown(given[0])}: the bundle reads {reads}: its manifest has ",
                "no preprocessing" if self.key is None else "another kind of preprocessing",
                f"; the model takes {taken}",
            ))  # fmt: skip
        try:
            made = self.preprocessor.inputs(row[given[0]])
        except OSError as error:
            raise InputError(system_reason(error)) from None
        if twice := sorted({*made} & {*others}):
            raise InputError(f"{given[0]!r} gives {twice[0]!r}, which the row has too")
        return {**others, **made}
