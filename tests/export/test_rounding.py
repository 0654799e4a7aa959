"""What float32 can do is measured on the code itself, which is left as it was."""

import functools
import importlib
import math
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tfexport.export import rounding
from tfexport.export.report import LEAST_ALLOWED, MOST_ALLOWED, MULTIPLE, allow
from tfexport.export.rounding import (
    CHANGED,
    FLOAT64,
    ORDERS,
    Rounding,
    Weights,
    difference,
    suited_threads,
)

IDS = torch.arange(6)


class Scorer(nn.Module):
    """Sums of large numbers that nearly cancel; with a buffer, a plain tensor, and a cache."""

    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embedding = nn.Embedding(6, 64)
        self.linear = nn.Linear(64, 9)
        nn.init.normal_(self.linear.weight, std=30.0)
        self.register_buffer("shift", torch.full((9,), 0.1))
        self.scale = torch.tensor([1.5])
        self.cache: Tensor | None = None

    def forward(self, ids: Tensor) -> Tensor:
        if self.cache is None:
            self.cache = self.linear.bias.exp()
        found: Tensor = self.linear(self.embedding(ids)) * self.scale + self.shift + self.cache
        return found


def measured(code: Any, call: Callable[[], Tensor]) -> tuple[float, Rounding]:
    found = Rounding(code)
    (noise,) = found.measure(lambda: [call()], [call().numpy()], ())
    return noise, found


def wrapped(model: nn.Module, kind: str) -> Callable[[Tensor], Tensor]:
    """Code of a user's own around a model, in the forms that hide it."""

    class Holder:
        def __init__(self) -> None:
            self.inside = {"models": [model]}

        def __call__(self, ids: Tensor) -> Tensor:
            found: Tensor = self.inside["models"][0](ids)
            return found

    def closed(ids: Tensor) -> Tensor:
        found: Tensor = model(ids)
        return found

    def with_model(it: nn.Module, ids: Tensor) -> Tensor:
        found: Tensor = it(ids)
        return found

    forms: dict[str, Callable[[Tensor], Tensor]] = {
        "module": model,
        "closure": closed,
        "partial": functools.partial(with_model, model),
        "object": Holder(),
        "method": Holder().__call__,
        "closure of a closure": lambda ids: closed(ids),
    }
    return forms[kind]


@torch.no_grad()
@pytest.mark.parametrize(
    "kind", ["module", "closure", "partial", "object", "method", "closure of a closure"]
)
def test_distance_from_float64_is_found_wherever_the_weights_are(kind: str) -> None:
    model = Scorer()
    code = wrapped(model, kind)
    noise, found = measured(code, lambda: code(IDS))
    assert found.by == FLOAT64
    weight, bias = model.linear.weight.double(), model.linear.bias.double()
    exact = model.embedding.weight.double() @ weight.T + bias
    exact = exact * model.scale.double() + model.shift.double() + bias.exp()
    least = ((model(IDS) - exact).abs() / exact.abs().clamp(min=1)).max()
    assert float(least) <= noise < 20 * float(least)
    assert noise > 1e-7


@torch.no_grad()
def test_weights_that_code_looks_up_elsewhere_are_found_by_watching_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    package = ModuleType("somewhere")
    package.__dict__["model"] = Scorer()
    monkeypatch.setitem(sys.modules, "somewhere", package)

    def code(ids: Tensor) -> Tensor:
        found: Tensor = importlib.import_module("somewhere").model(ids)
        return found

    class WithOthers:
        def __init__(self) -> None:
            self.code, self.not_used = code, nn.Linear(2, 2)

    noise, found = measured(WithOthers(), lambda: code(IDS))
    held, _ = measured(package.model, lambda: package.model(IDS))
    assert found.by == FLOAT64
    assert held / 2 < noise <= held


@torch.no_grad()
@pytest.mark.parametrize("others", [None, ()], ids=["costs much", "costs little"])
def test_values_that_happen_to_be_exact_have_noise_too(others: tuple[()] | None) -> None:
    model = nn.Linear(4, 4, bias=False)

    def call() -> Tensor:
        weights: Tensor = model(torch.eye(4))
        return weights

    found = Rounding(model)
    (noise,) = found.measure(lambda: [call()], [call().numpy()], others)
    assert found.by == FLOAT64
    assert 1e-9 < noise < 1e-6


@torch.no_grad()
def test_code_is_as_it_was_afterwards() -> None:
    model = Scorer()
    weights, before = Weights(model), {k: v.clone() for k, v in model.state_dict().items()}
    for held in (weights.in_float64(), weights.changed(1)):
        with held:
            model(IDS)
        assert model.cache is None, "what was cached meanwhile is of another precision"
        assert torch.get_default_dtype() == torch.float32
        assert model.scale.dtype == torch.float32
        after = model.state_dict()
        assert all(after[key].dtype == it.dtype for key, it in before.items())
        assert all(torch.equal(after[key], it) for key, it in before.items())
    with pytest.raises(RuntimeError, match="in the middle"), weights.in_float64():
        raise RuntimeError("in the middle")
    assert model.linear.weight.dtype == torch.float32


def test_changed_weights_are_neighbours_and_masks_stay() -> None:
    model = Scorer()
    with torch.no_grad():
        model.linear.weight[0, :2] = torch.tensor([0.0, -math.inf])
        before = model.linear.weight.clone()
        with Weights(model).changed(5):
            after = model.linear.weight.clone()
            assert torch.equal(model.shift, torch.full((9,), 0.1))
    assert torch.equal(after[0, :2], before[0, :2])
    finite = before.isfinite()
    gap = (after - before).abs()[finite] / before.abs()[finite].clamp(min=1e-30)
    assert 0.3 < float((gap > 0).float().mean()) < 0.7
    assert float(gap.max()) <= 2.0**-22


@torch.no_grad()
def test_code_that_insists_on_float32_is_measured_by_changes() -> None:
    model = Scorer()

    def code(ids: Tensor) -> Tensor:
        zeros = torch.zeros(9, dtype=torch.float32) @ torch.eye(9, dtype=torch.float32)
        found: Tensor = model(ids) + zeros
        return found

    def insists(ids: Tensor) -> Tensor:
        found: Tensor = model(ids).float()
        return found

    def fails(ids: Tensor) -> Tensor:
        if model.linear.weight.dtype != torch.float32:
            raise RuntimeError("expected Float but found Double")
        found: Tensor = model(ids)
        return found

    exact, _ = measured(code, lambda: code(IDS))
    for other in (insists, fails):
        noise, found = measured(other, functools.partial(other, IDS))
        assert found.by == CHANGED
        assert exact / 10 < noise < 10 * exact


@torch.no_grad()
def test_weights_that_are_too_many_for_float64_are_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounding, "MOST_DOUBLED", 100)
    model = Scorer()
    noise, found = measured(model, lambda: model(IDS))
    assert found.by == CHANGED
    assert noise > 0


def test_code_without_weights_is_measured_by_orders_alone() -> None:
    def code(ids: Tensor) -> Tensor:
        return ids * 0.1

    noise, found = measured(code, lambda: code(IDS))
    assert (noise, found.by) == (0.0, ORDERS)


def test_a_difference_is_the_largest_of_all_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounding, "_COMPARED", 4)
    wanted = np.linspace(-3.0, 3.0, 10).reshape(2, 5)
    for place in range(10):
        ours = wanted.copy()
        ours.flat[place] += 0.5
        relative = 0.5 / max(1.0, abs(wanted.flat[place]))
        assert difference(ours, wanted) == pytest.approx(relative)
        ours.flat[place] = np.nan
        assert math.isnan(difference(ours, wanted))
        ours.flat[place] = wanted.flat[place]
        assert difference(ours, wanted) == 0.0
    assert difference(np.empty((0, 3)), np.empty((0, 3))) == 0.0


def test_allowance_follows_the_noise_between_bounds() -> None:
    assert allow(0.0) == allow(LEAST_ALLOWED / MULTIPLE) == LEAST_ALLOWED
    assert allow(3e-4) == pytest.approx(MULTIPLE * 3e-4)
    assert allow(1.0) == allow(1e30) == MOST_ALLOWED
    assert allow(np.nan) == allow(np.inf) == LEAST_ALLOWED, "no measure widens nothing"


def test_code_with_few_weights_runs_in_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(2)
    try:
        with suited_threads(Scorer()):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
        monkeypatch.setattr(rounding, "LEAST_SHARED", Weights(Scorer()).size)
        with suited_threads([Scorer()]):
            assert torch.get_num_threads() == 2
        with pytest.raises(KeyError), suited_threads(nn.ReLU()):
            raise KeyError
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
