"""Which parameters of a module became which weights of the recognised model.

Weights are read by running the program, so where they come from is found by comparing values.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping

from torch import Tensor, nn

_ALIKE = 1 - 1e-6  # the cosine of rows that are multiples of one another
_LONGEST_VECTOR = 2**15  # elements; biases of all heads and of packed matrices are shorter
_FEWEST = 4  # different values of a tensor whose origin is certain: many are all zeros or ones
_SAMPLE = 2**14  # elements of a table that are looked at to count them


def report_parameters(
    module: nn.Module, weights: Mapping[str, Tensor]
) -> dict[str, tuple[str, ...]]:
    """Every parameter and buffer of a module to the weights that have its values.

    A weight may be a part of a parameter, its transpose, its rows in another order, or a multiple.
    Vectors with hardly any different values, such as biases of zeros, are left out.

    Args:
        module: the user's.
        weights: of the recognised model, by name.

    Returns:
        The names of both; none of ours for a parameter that changes nothing or that was joined with
        another.
    """
    theirs = {
        name: tensor.detach().float()
        for name, tensor in module.state_dict(keep_vars=True).items()
        if isinstance(tensor, Tensor) and tensor.is_floating_point() and _is_telling(tensor)
    }
    index = _Index(theirs)
    report: dict[str, list[str]] = {name: [] for name in theirs}
    for weight, tensor in weights.items():
        if _is_telling(tensor):
            for name in index.owners(tensor) or index.multiples(tensor):
                report[name].append(weight)
    return {name: tuple(found) for name, found in report.items()}


class _Index:
    """The parameters that have a given row, or a given element."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = tensors
        self.rows: defaultdict[int, list[str]] = defaultdict(list)
        self.elements: defaultdict[float, set[str]] = defaultdict(set)
        for name, tensor in tensors.items():
            if tensor.dim() > 1:
                for matrix in _matrices(tensor):
                    for row in _hashes(matrix):
                        self.rows[row].append(name)
            if tensor.numel() <= _LONGEST_VECTOR:
                for element in tensor.flatten().tolist():
                    self.elements[element].add(name)

    def owners(self, weight: Tensor) -> list[str]:
        """The parameters with a row of a matrix, or with all elements of a vector."""
        if weight.dim() == 1:
            found = [self.elements.get(element, set()) for element in weight.tolist()]
            common = set.intersection(*found)
        else:
            rows = (row for matrix in (weight, weight.t()) for row in _hashes(matrix))
            common = {name for row in rows for name in self.rows.get(row, ())}
        return [name for name in self.tensors if name in common]

    def multiples(self, weight: Tensor) -> list[str]:
        """The parameters with a row that is a multiple of the first row of a matrix."""
        first = weight if weight.dim() == 1 else next(filter(_is_telling, weight), weight[0])
        first = first / first.norm()
        found = []
        for name, tensor in self.tensors.items():
            for matrix in [tensor[None]] if tensor.dim() == 1 else _matrices(tensor):
                if matrix.shape[1] == len(first):
                    cosines = (matrix @ first).abs() / matrix.norm(dim=1).clamp(min=1e-30)
                    if bool((cosines > _ALIKE).any()):
                        found.append(name)
                        break
        return found


def _is_telling(tensor: Tensor) -> bool:
    sample = tensor.flatten()[:: max(1, tensor.numel() // _SAMPLE)]
    return tensor.numel() > 0 and len(sample.unique()) >= min(_FEWEST, max(2, tensor.numel()))


def _matrices(tensor: Tensor) -> Iterator[Tensor]:
    """A tensor as a matrix whose rows lie along each of its axes."""
    for axis in range(tensor.dim()):
        yield tensor.movedim(axis, -1).reshape(-1, tensor.shape[axis])


def _hashes(matrix: Tensor) -> Iterator[int]:
    """A number for each row that is not constant."""
    varies = (matrix != matrix[:, :1]).any(dim=1)
    for row in matrix[varies].contiguous().numpy():
        yield hash(row.tobytes())
