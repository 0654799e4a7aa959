"""The page of modules: its blocks in their order, from a module to tokens."""

from pathlib import Path

import pytest

from tests.support.documents import read_blocks, run_in_shell
from tests.support.paths import REPOSITORY

PAGE = REPOSITORY / "docs" / "modules.md"
TRAINING_SCRIPT = REPOSITORY / "docs" / "training-script.md"


# A guide, which make test follows, has the module of this page.
@pytest.mark.exhaustive
def test_page_goes_from_a_module_to_tokens(tmp_path: Path) -> None:
    blocks = [block for block in read_blocks(PAGE) if block.heading == "From a module to a bundle"]
    module, *others = blocks
    assert module.text.startswith("# my_model.py\n")
    (tmp_path / "my_model.py").write_text(module.text, encoding="utf-8")
    printed = []
    for block in others:
        (tmp_path / "block.py").write_text(block.text, encoding="utf-8")
        script = "python block.py" if block.language == "python" else block.text
        printed.append(run_in_shell(script, tmp_path))
    _making, commands, _exporting, decoding = printed
    assert commands.count("equal to the code of Reader") == 3  # exported, inspected, verified
    assert len(decoding.splitlines()) == 2


@pytest.mark.exhaustive
def test_a_training_script_is_exported_as_it_is(tmp_path: Path) -> None:
    module, making, commands = (
        block for block in read_blocks(TRAINING_SCRIPT) if block.heading == "The lines"
    )
    (tmp_path / "my_training.py").write_text(module.text, encoding="utf-8")
    (tmp_path / "block.py").write_text(making.text, encoding="utf-8")
    printed = run_in_shell(f"python block.py\n{commands.text}", tmp_path)
    assert printed.count("equal to the code of Translator") == 2  # exported, inspected
    assert "cache: " in printed
