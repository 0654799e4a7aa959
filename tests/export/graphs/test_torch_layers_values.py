"""Code that looks at values without an effect on the result, and older spellings of torch."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.support.layer_export import Axes, Called, check, export, normal
from tfexport.errors import ExportError
from tfexport.export.graphs.torch_layers import capture

ROWS = normal("B", "S", 8)
IDS = Axes(("B", "S"), "ids")


def of_all(_layer: nn.Module, rows: Tensor, ids: Tensor) -> Tensor:
    assert (ids >= 0).all(), "negative"
    return rows * 2


def of_none(_layer: nn.Module, rows: Tensor, ids: Tensor) -> Tensor:
    assert not (ids < 0).any()
    return rows * 2


def of_a_number(_layer: nn.Module, rows: Tensor, ids: Tensor) -> Tensor:
    assert ids.sum().item() >= 0
    return rows * 2


def of_equal_tensors(_layer: nn.Module, rows: Tensor, ids: Tensor) -> Tensor:
    assert torch.equal(ids, ids.clone()) and torch.allclose(  # noqa: PT018
        rows,
        rows.clone(),
    )
    return rows * 2


def with_an_error(_layer: nn.Module, rows: Tensor, ids: Tensor) -> Tensor:
    if torch.isnan(rows).any() or (ids < 0).any():
        raise ValueError("not a number")
    return rows * 2


def with_an_error_unless(_layer: nn.Module, rows: Tensor, ids: Tensor) -> Tensor:
    if not (ids >= 0).all():
        print("negative")
        raise ValueError("negative")
    return rows * 2


CONDITIONS = [
    of_all,
    of_none,
    of_a_number,
    of_equal_tensors,
    with_an_error,
    with_an_error_unless,
]


@pytest.mark.usefixtures("opset")
@pytest.mark.parametrize("call", CONDITIONS)
def test_a_condition_without_an_effect_is_left_out(call: Callable[..., Tensor]) -> None:
    check(nn.Identity(), [ROWS, IDS], call)


def with_an_effect(_layer: nn.Module, rows: Tensor, ids: Tensor) -> Tensor:
    if (ids > 3).any():
        rows = rows * 3
    return rows * 2


def with_an_effect_otherwise(_layer: nn.Module, rows: Tensor, ids: Tensor) -> Tensor:
    if (ids < 0).any():
        raise ValueError("negative")
    return rows * 2 if (ids > 3).any() else rows


@pytest.mark.parametrize("call", [with_an_effect, with_an_effect_otherwise])
def test_a_condition_with_an_effect_is_refused(call: Callable[..., Tensor]) -> None:
    with pytest.raises(Exception, match="data-dependent"):
        export(Called(nn.Identity(), call), [ROWS, IDS])


def test_conditions_of_a_file_that_is_no_python_are_none() -> None:
    assert capture._harmless("/nowhere/model.py") == {}


OLDER: dict[str, Callable[[nn.Module, Tensor, Tensor], Tensor]] = {
    "data": lambda _, rows, ids: rows.data + ids.data.eq(0)[..., None],
    "Variable": lambda _, rows, ids: torch.autograd.Variable(rows) * 2,
    "LongTensor of a list": lambda _, rows, ids: rows * torch.LongTensor([3, 4])[1],
    "LongTensor as an index": lambda _, rows, ids: rows[:, :, torch.LongTensor([2, 1])],
    "Tensor of sizes": lambda _, rows, ids: rows * torch.Tensor(1, rows.size(1), 1).fill_(2.0),
    "type": lambda _, rows, ids: rows + ids.type(torch.FloatTensor)[..., None],  # type: ignore[call-overload]
    "a bool of one": lambda _, rows, ids: rows * torch.BoolTensor([True]).float(),
}


@pytest.mark.parametrize("name", OLDER)
def test_an_older_spelling_is_exported(name: str) -> None:
    check(nn.Identity(), [ROWS, IDS], OLDER[name])


REPEATS: dict[str, Callable[[nn.Module, Tensor, Tensor], Tensor]] = {
    "by a size": lambda _, rows, ids: torch.repeat_interleave(ids[:, 0], rows.size(1)),
    "by a size, along an axis": lambda _, rows, ids: ids.repeat_interleave(rows.size(1), dim=1),
    "from behind": lambda _, rows, ids: torch.repeat_interleave(rows, ids.size(1), dim=-2),
    "by a number": lambda _, rows, ids: rows.repeat_interleave(3, dim=0),
    "truth values": lambda _, rows, ids: (ids > 2).repeat_interleave(2, 1),
}


@pytest.mark.parametrize("name", REPEATS)
def test_repeats_have_any_number(name: str) -> None:
    check(nn.Identity(), [ROWS, IDS], REPEATS[name])


SIZES_OF_THE_EXAMPLE: dict[str, tuple[Callable[[nn.Module, Tensor], Tensor], str]] = {
    "int": (lambda _, rows: rows * torch.ones(int(rows.size(1)), 1), "omit int"),
    "LongTensor": (lambda _, rows: rows + torch.LongTensor([rows.size(1)]), "torch.tensor"),
    "numpy": (
        lambda _, rows: rows * torch.from_numpy(np.ones((rows.size(1), 1))),
        "through numpy",
    ),
}


@pytest.mark.messages
@pytest.mark.parametrize("name", SIZES_OF_THE_EXAMPLE)
def test_what_takes_the_example_s_size_is_named(name: str) -> None:
    call, said = SIZES_OF_THE_EXAMPLE[name]
    with pytest.raises(ExportError, match=said) as caught:
        export(Called(nn.Identity(), call), [ROWS])
    assert "test_torch_layers_values.py:" in str(caught.value)
