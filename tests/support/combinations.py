"""Values of a parameter of which `make test` takes a few, and `make test-all` all."""

from collections.abc import Iterable
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet


def few_of(values: Iterable[Any], *few: object) -> list[ParameterSet]:
    """Parameters; all but a few are exhaustive. A tuple holds values of several parameters."""
    found = list(values)
    assert all(value in found for value in few), few
    return [
        pytest.param(
            *(value if isinstance(value, tuple) else (value,)),
            marks=() if value in few else pytest.mark.exhaustive,
        )
        for value in found
    ]
