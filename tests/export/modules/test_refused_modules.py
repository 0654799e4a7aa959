"""Modules that cannot be a graph: each refused in one line that names the method and the line."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support.module_faults import FAULTS, Fault
from tests.support.user_files import (
    ENCODE,
    RECOMPUTING,
    WITH_STATE,
    Methods,
    UserFile,
)
from tfexport.errors import ExportError
from tfexport.export import Input, export

pytestmark = pytest.mark.messages

FRAMES = Input("frames", "float32", ("batch", "time", 6))


def export_user_file(folder: Path, methods: Methods, **options: Any) -> UserFile:
    """Export the module of a file that is written to a folder of its own."""
    source, output = folder / "source", folder / "output"
    source.mkdir()
    output.mkdir()
    file = UserFile(source, methods)
    given = {"inputs": [FRAMES], "pad_id": 0, "bos_id": 1, "eos_id": 2, "max_length": 12, **options}
    export(file.build(), output / "captions.bundle", **given)
    return file


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_it_is_refused_in_one_line(tmp_path: Path, fault: Fault) -> None:
    with pytest.raises(ExportError) as caught:
        export_user_file(tmp_path, fault.methods)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 700, message
    line = UserFile(tmp_path, fault.methods).line(fault.method)
    assert f"Captioner.{fault.method}" in message
    assert f"captioner.py, line {line}" in message
    for said in fault.said:
        assert said in message
    assert list((tmp_path / "output").iterdir()) == []


@pytest.mark.parametrize("methods", [WITH_STATE, RECOMPUTING], ids=["with a state", "recomputing"])
def test_without_a_fault_it_is_exported(tmp_path: Path, methods: Methods) -> None:
    export_user_file(tmp_path, methods)
    assert [path.name for path in (tmp_path / "output").iterdir()] == ["captions.bundle"]


MISSING: list[tuple[str, Methods, tuple[str, ...]]] = [
    ("encode", {**RECOMPUTING, "encode": None}, ("encode",)),
    ("decode and step", {"encode": ENCODE}, ("decode", "start", "step")),
    ("start", {**WITH_STATE, "start": None}, ("step", "start")),
    ("step", {**WITH_STATE, "step": None}, ("start", "step")),
]


@pytest.mark.parametrize(("methods", "said"), [case[1:] for case in MISSING],
                         ids=[case[0] for case in MISSING])  # fmt: skip
def test_a_missing_method_is_named(tmp_path: Path, methods: Methods, said: tuple[str, ...]) -> None:
    with pytest.raises(ExportError) as caught:
        export_user_file(tmp_path, methods)
    message = str(caught.value)
    assert "\n" not in message
    assert "Captioner" in message
    for name in said:
        assert name in message
    assert list((tmp_path / "output").iterdir()) == []


COUNTS = [
    ("encode", "\ndef encode(self, frames, mask):\n    return frames\n"),
    ("start", "\ndef start(self):\n    return ()\n"),
    ("start", "\ndef start(self, memory, mask):\n    return memory\n"),
    ("step", "\ndef step(self, token, state, memory):\n    return token, state\n"),
    ("decode", "\ndef decode(self, tokens):\n    return tokens\n"),
    ("decode", "\ndef decode(self, tokens, memory, mask):\n    return tokens\n"),
]


@pytest.mark.parametrize(("method", "source"), COUNTS)
def test_parameters_of_another_number_are_refused(tmp_path: Path, method: str, source: str) -> None:
    fault = Fault("", source)
    with pytest.raises(ExportError) as caught:
        export_user_file(tmp_path, fault.methods)
    message = str(caught.value)
    assert "\n" not in message
    assert f"Captioner.{method}" in message
    line = UserFile(tmp_path, fault.methods).line(method)
    assert f"captioner.py, line {line}" in message
    assert list((tmp_path / "output").iterdir()) == []


def test_every_part_gets_its_own_mode_back(tmp_path: Path) -> None:
    file = UserFile(tmp_path, WITH_STATE)
    model = file.build().train()
    model.output.eval()  # as a frozen part
    given: dict[str, Any] = {"pad_id": 0, "bos_id": 1, "eos_id": 2, "max_length": 4}
    wide = [Input("frames", "float32", ("batch", "time", 6, 2))]  # of one axis more
    with pytest.raises(ExportError):
        export(model, tmp_path / "a.bundle", inputs=wide, **given)
    assert model.training
    assert model.embedding.training
    assert not model.output.training


@pytest.mark.parametrize("changed", ["calls", "places", "project.weight"])
def test_a_tensor_that_a_method_keeps_is_named_by_its_path(tmp_path: Path, changed: str) -> None:
    encode = ENCODE.replace("    return", f"    self.{changed}.mul_(0.5)\n    return")
    with pytest.raises(ExportError, match=f"modifies '{changed}' of the module"):
        export_user_file(tmp_path, {**RECOMPUTING, "encode": encode})


@pytest.mark.parametrize("graph", [None, "torchscript"])
def test_a_small_module_runs_in_one_thread(tmp_path: Path, graph: str | None) -> None:
    seen: list[int] = []

    class Stops(nn.Module):
        def encode(self, frames: Tensor) -> Tensor:
            seen.append(torch.get_num_threads())
            raise KeyError

        def decode(self, tokens: Tensor, memory: Tensor) -> Tensor:
            return tokens

    torch.set_num_threads(2)
    try:
        with pytest.raises(ExportError, match="KeyError"):
            export(Stops(), tmp_path / "a", graph=graph, inputs=[FRAMES], pad_id=0, bos_id=1,
                   eos_id=2, max_length=5)  # fmt: skip
    finally:
        torch.set_num_threads(1)
    assert set(seen) == {1}
