"""``tfexport onnx --module``: a user's own file, from its factory to a bundle, or to a message."""

from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.command import invoke
from tests.support.user_files import WITH_STATE, UserFile

FACTORY = """
import torch
from tfexport.export import Input


def make():
    torch.manual_seed(0)
    return {
        "model": Captioner(), "inputs": [Input("frames", "float32", ("batch", "time", 6))],
        "pad_id": 0, "bos_id": 1, "eos_id": 2, "max_length": 12,
    }
"""


class Case(NamedTuple):
    """A file and a name in it, and what the message has to say."""

    file: str
    name: str
    said: tuple[str, ...]


# Each file has a name of its own: Python keeps what it has imported.
CASES = [
    Case("", "file_a", ("--module", "package.file:function")),
    Case("", "folder/file_b.py:make", ("--module", "folder.file_b:function")),
    Case("", "no_such_file:make", ("--module", "no_such_file")),
    Case("def make_it():\n    pass\n", "file_c:make", ("file_c:make", "make_it")),
    Case("make = 5\n", "file_d:make", ("file_d:make", "int")),
    Case("import os\n1 / 0\n", "file_e:make", ("ZeroDivisionError", "file_e.py, line 2")),
    Case("def make(:\n", "file_f:make", ("SyntaxError", "file_f.py, line 1")),
    Case("def make():\n    open('none.pt')\n", "file_g:make", ("none.pt", "file_g.py, line 2")),
    Case("def make(path):\n    pass\n", "file_h:make", ("path",)),
    Case("def make():\n    return 5\n", "file_i:make", ("file_i:make", "dict")),
    Case("def make():\n    return None\n", "file_j:make", ("file_j:make", "dict")),
    Case("def make():\n    return {'modl': 1}\n", "file_k:make", ("'modl'", "'model'", "'inputs'")),
    Case(
        FACTORY.replace("Captioner()", "'a'"), "file_l:make", ("'a'", "torch.nn.Module")
    ),
    Case(FACTORY.replace("Captioner()", "__import__('torch').nn.Linear(1, 1)"), "file_m:make",
         ("Linear", "encode")),
]  # fmt: skip


@pytest.mark.messages
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_is_wrong_is_said_and_nothing_left(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / f"{case.name.partition(':')[0]}.py"
    if case.file:
        file.write_text(case.file, encoding="utf-8")
    done = invoke("onnx", "--module", case.name, "-o", "captions.bundle")
    assert done.exit_code in (1, 2)
    assert len(done.stderr.splitlines()) == 1 or "problems:" in done.stderr
    assert len(done.stderr) < 700
    for said in case.said:
        assert said in done.stderr
    left = {path.name for path in tmp_path.iterdir()} - {"__pycache__"}
    assert left == ({file.name} if case.file else set())


@pytest.mark.usefixtures("no_beam_graph", "few_shapes")
def test_a_factory_in_the_current_folder_makes_a_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = UserFile(tmp_path, WITH_STATE).text
    Path("file_of_mine.py").write_text(text + FACTORY, encoding="utf-8")
    done = invoke("onnx", "--module", "file_of_mine:make", "-o", "captions.bundle")
    assert done.exit_code == 0, done.output
    checked = invoke("verify", "captions.bundle", "--module", "file_of_mine:make")
    assert checked.exit_code == 0, checked.output


def test_arguments_of_a_factory_are_not_spelled_as_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = FACTORY.replace("Captioner()", "5").replace("1,", "'a',")
    Path("file_q.py").write_text(wrong, encoding="utf-8")
    done = invoke("onnx", "--module", "file_q:make", "-o", "captions.bundle")
    assert done.exit_code == 2
    assert "bos_id" in done.stderr
    assert "--bos-id" not in done.stderr
