"""The page of modules: its blocks in their order, from a module to tokens."""

import json
from pathlib import Path

import pytest

from tests.support.documents import Block, read_blocks, run_in_shell
from tests.support.paths import REPOSITORY
from tfexport.model_src.checkpoint.unsupported import MODULE, add_lines

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


FOUND = "max_length=9, recognise=False"


def of_training_script(heading: str) -> list[Block]:
    return [block for block in read_blocks(TRAINING_SCRIPT) if block.heading == heading]


@pytest.mark.exhaustive
def test_a_training_script_is_exported_as_it_is(tmp_path: Path) -> None:
    module, making, commands = of_training_script("A file for the command line")
    (lines,) = of_training_script("Four lines")
    (example,) = of_training_script("An example in place of inputs")
    (tmp_path / "my_training.py").write_text(module.text, encoding="utf-8")
    (tmp_path / "block.py").write_text(making.text, encoding="utf-8")
    printed = run_in_shell(f"python block.py\n{commands.text}", tmp_path)
    assert printed.count("equal to your Translator.forward") == 2  # exported, inspected
    script = (
        "PAD_IDX, BOS_IDX, EOS_IDX = 0, 1, 2\n"
        f"{lines.text}"
        "src, tgt = torch.randint(3, 32, (3, 7)), torch.randint(3, 32, (3, 5))\n"
        f"{example.text.replace('model.bundle', 'example.bundle')}"
    )
    (tmp_path / "script.py").write_text(script.replace("max_length=100", FOUND))
    run_in_shell("python script.py", tmp_path)
    one, two = ((tmp_path / f"{name}.bundle" / "manifest.json").read_text()
                for name in ("model", "example"))  # fmt: skip
    assert json.loads(one)["module"] == json.loads(two)["module"]
    assert "cache: " in run_in_shell("tfexport inspect example.bundle", tmp_path)


def test_the_lines_of_the_page_are_those_of_the_messages() -> None:
    (lines,) = of_training_script("Four lines")
    told = str(add_lines(MODULE, Path("model.pt"), ())).partition("\n\n")[2]
    own = told.replace("your_code", "my_training").replace("YourModel", "Translator")
    assert own.replace("  # as it is built for the training", "").split() == lines.text.split()
