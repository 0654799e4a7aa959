"""The opset of layers that are exported by themselves."""

import pytest

from tests.support import layer_export


@pytest.fixture(params=[22, pytest.param(20, marks=pytest.mark.exhaustive)])
def opset(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of fused graphs, and the oldest, which portable ones have."""
    monkeypatch.setattr(layer_export, "opset", request.param)
