"""The page of modules: its blocks in their order, from a module to tokens."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.documents import read_blocks
from tests.support.paths import REPOSITORY

PAGE = REPOSITORY / "docs" / "modules.md"


def test_page_goes_from_a_module_to_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    blocks = [
        block.text
        for block in read_blocks(PAGE)
        if block.language == "python" and block.heading == "From a module to a bundle"
    ]
    names: dict[str, Any] = {}
    for text in blocks[:3]:
        exec(compile(text, str(PAGE), "exec"), names)
    assert (tmp_path / "reader.bundle").is_dir()
    assert len(capsys.readouterr().out.splitlines()) == 2
    # The factory is in the fourth.
    assert "def reader():" in blocks[3]
    torch.save(names["Reader"]().state_dict(), "reader.pt")
    exec(compile(blocks[3], str(PAGE), "exec"), names)
    assert names["reader"]()["max_length"] == 20
