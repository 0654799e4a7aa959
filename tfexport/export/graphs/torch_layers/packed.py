"""Packed sequences: a padded tensor and its lengths stand in for one while exporting.

torch packs rows of unequal length into one axis whose size depends on the lengths, and ONNX's
recurrent operators take padded rows and their lengths. So ``pack_padded_sequence`` keeps the rows
padded here, and the layers of ``recurrent`` give the operator the lengths.

Axes: T time, B batch.
"""

from collections.abc import Iterator, Sequence
from typing import Any, overload

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from tfexport.export.graphs.torch_layers.refusal import refusal


class PackedLengths:
    """The lengths of the sequences that were packed while exporting."""

    def __init__(self) -> None:
        self._known: list[tuple[Tensor, Tensor]] = []

    def of(self, sequence: PackedSequence) -> Tensor:
        """(B,) lengths, in the order of the packed rows.

        Raises:
            ExportError: it was not made by ``pack_padded_sequence``.
        """
        return self._find(sequence.batch_sizes)

    def _find(self, batch_sizes: Tensor) -> Tensor:
        for known, lengths in self._known:
            if known is batch_sizes:
                return lengths
        raise refusal(
            "PackedSequence",
            "it was not made by pack_padded_sequence, or its batch_sizes were changed",
            "make it of padded rows and a tensor of lengths with pack_padded_sequence",
        )

    def pack(self, rows: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
        """In place of torch's ``_pack_padded_sequence``; the rows stay padded.

        Args:
            rows: (T, B, ...), or (B, T, ...) if ``batch_first``.
            lengths: (B,) int64.
            batch_first: which of the two.

        Returns:
            data: (longest, B, ...).
            batch_sizes: (longest,) rows that are as long as this or longer.
        """
        data = rows.transpose(0, 1) if batch_first else rows
        longest = lengths.max().item()
        torch._check(longest >= 1)
        torch._check(longest <= data.size(0))
        data = data[:longest]
        batch_sizes = (lengths > torch.arange(longest).unsqueeze(1)).sum(1)
        self._known.append((batch_sizes, lengths))
        return data, batch_sizes

    def unpack(
        self,
        data: Tensor,
        batch_sizes: Tensor,
        batch_first: bool,
        padding_value: float,
        total_length: int,
    ) -> tuple[Tensor, Tensor]:
        """In place of torch's ``_pad_packed_sequence``.

        Returns:
            rows: (total_length, B, ...), or (B, total_length, ...) if ``batch_first``.
            lengths: (B,) int64.
        """
        lengths = self._find(batch_sizes)
        longest = data.size(0)
        inside = torch.arange(longest).unsqueeze(1) < lengths
        inside = inside.reshape(*inside.shape, *[1] * (data.dim() - 2))
        rows = torch.where(inside, data, padding_value)
        if total_length is not batch_sizes.size(0):
            missing = total_length - longest
            torch._check(missing >= 0)
            rows = torch.cat([rows, rows.new_full((missing, *rows.shape[1:]), padding_value)])
        return (rows.transpose(0, 1) if batch_first else rows), lengths


class ListedLengths(Sequence[int]):
    """The list that ``tolist`` gives of a tensor whose values are not known while exporting.

    ``pack_padded_sequence`` makes a tensor of it again; its values cannot be read.
    """

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def __len__(self) -> int:
        raise self._refused()

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...
    def __getitem__(self, index: Any) -> Any:
        """Refused, as every way of reading the list."""
        raise self._refused()

    def __iter__(self) -> Iterator[int]:
        raise self._refused()

    def _refused(self) -> Exception:
        return refusal(
            "Tensor.tolist",
            "the values of a list would be those of the example",
            "compute with the tensor; pack_padded_sequence takes it too",
        )


def listed(own: Any, values: Tensor) -> Any:
    """In place of the ``tolist`` of a tensor that is traced, which is ``own``."""
    return ListedLengths(values) if values.dim() == 1 else own(values)


def unlisted(own: Any, values: Any, *args: Any, **kwargs: Any) -> Any:
    """In place of ``torch.as_tensor`` and ``torch.tensor``, which are ``own``."""
    if isinstance(values, ListedLengths):
        dtype = kwargs.get("dtype")
        return values.values if dtype is None else values.values.to(dtype)
    return own(values, *args, **kwargs)
