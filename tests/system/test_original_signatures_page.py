"""The pages of the source documents: their example runs, and what they name is there."""

import importlib
import re
from pathlib import Path

import pytest

from tests.support.documents import read_blocks, run_in_shell
from tests.support.paths import REPOSITORY
from tfexport.model_src import masks, original_signatures

DOCS = REPOSITORY / "docs"
PAGE = DOCS / "original-signatures.md"


def test_the_call_of_the_page_computes_what_torch_does(tmp_path: Path) -> None:
    (block,) = (block for block in read_blocks(PAGE) if block.language == "python")
    (tmp_path / "block.py").write_text(block.text, encoding="utf-8")
    assert run_in_shell("python -W ignore block.py", tmp_path) == "True\n"


@pytest.mark.parametrize(("page", "column"), [("architectures", 2), ("original-signatures", 1)])
def test_what_a_table_says_is_here_is_there(page: str, column: int) -> None:
    lines = (DOCS / f"{page}.md").read_text(encoding="utf-8").splitlines()
    cells = [line.split("|")[column] for line in lines if line.startswith("| `")]
    names = [name for cell in cells for name in re.findall(r"`([a-z_]+)\.([\w.]+)`", cell)]
    assert len(names) > 10
    for file, name in names:
        value: object = importlib.import_module(f"tfexport.model_src.{file}")
        for part in name.split("."):
            value = getattr(value, part)


def test_every_signature_and_mask_is_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for module in (original_signatures, masks):
        file = module.__name__.rpartition(".")[2]
        names = [
            name
            for name, value in vars(module).items()
            if name[0] != "_" and getattr(value, "__module__", "") == module.__name__
        ]
        assert names
        for name in names:
            assert f"`{file}.{name}`" in text
