"""Every code block of the pages: run here on the demo model, or marked with where or why not.

A comment in front of a block is such a mark: `<!-- run by: tests/… -->`, `<!-- not run: why -->`.
"""

import json
import re
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from tests.support import tutorial
from tests.support.command import COMMANDS
from tests.support.documents import (
    PAGES,
    QUICK_START_PAGE,
    Block,
    read_blocks,
    run_in_shell,
    words,
)
from tests.support.paths import REPOSITORY
from tfexport.cli.main import cli
from tfexport.model_src.checkpoint.read import load_checkpoint

pytestmark = pytest.mark.slow

BLOCKS = [block for page in PAGES for block in read_blocks(page)]
QUICK_START = [block for block in BLOCKS if block.page == QUICK_START_PAGE]
# Lines that need not run again: the quick start's test exports so; make installs packages.
DONE = [words(command) for block in QUICK_START for command in block.commands] + [
    ["pip", "install", "onnxruntime", "tokenizers"],
    ["npm", "ci", "--ignore-scripts"],
]
FILES = {
    "de-en.bundle": "bundle",
    "generate.onnx": "generate",
    "model.ts": "torchscript",
    "model.pt2": "program",
}
SOURCE, TRANSLATION = "Guten Morgen!", "Good morning."


def blocks(*languages: str) -> pytest.MarkDecorator:
    found = [
        # What a program of torch.export needs is made for such a block alone.
        pytest.param(
            block,
            id=str(block),
            marks=pytest.mark.exhaustive if "model.pt2" in block.text else (),
        )
        for block in BLOCKS
        if block.language in languages
        and block not in QUICK_START
        and not (block.not_run or block.run_by)
    ]
    assert found
    return pytest.mark.parametrize("block", found)


@pytest.fixture
def folder(
    block: Block, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Where a reader is who has followed the page up to the block."""
    for name, fixture in FILES.items():
        if re.search(rf"(?<!\.\./)(?<!examples/){re.escape(name)}", block.text):
            (tmp_path / name).symlink_to(request.getfixturevalue(fixture))
    for path in (REPOSITORY / "examples").glob("*/*"):
        # Folders of their own: `cd examples/node` and `../..` lead back here. A bundle is one link.
        path = path.parent if path.parent.suffix == ".bundle" else path
        copy = tmp_path / path.relative_to(REPOSITORY)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if not copy.is_symlink():
            copy.symlink_to(path)
    (tmp_path / "input.txt").write_text(f"{SOURCE}\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def row(tokenizer: Tokenizer) -> list[int]:
    return [2, *tokenizer.encode(SOURCE).ids, 3]


@blocks("python")
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_python(
    block: Block,
    folder: Path,
    row: list[int],
    tokenizer: Tokenizer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ids, mask = np.array([row]), np.ones((1, len(row)), np.int64)
    names: dict[str, Any] = {
        "ids": ids,
        "mask": mask,
        "input_ids": torch.from_numpy(ids),
        "attention_mask": torch.from_numpy(mask),
    }
    exec(compile(block.text, str(block), "exec"), names)
    if "print(" in block.text:
        assert capsys.readouterr().out.strip() == TRANSLATION
    else:
        assert tokenizer.decode(names["sequences"][0].tolist()) == TRANSLATION


@blocks("")
def test_shell(block: Block, folder: Path) -> None:
    if "node " in block.text and not (folder / "examples" / "node" / "node_modules").exists():
        pytest.skip("needs npm packages: make examples/node/node_modules/ready")
    left = [command for command in block.commands if words(command) not in DONE]
    assert left
    assert run_in_shell("\n".join(left), folder).strip() == TRANSLATION


@blocks("js")
def test_javascript(block: Block, folder: Path, row: list[int], tokenizer: Tokenizer) -> None:
    packages = REPOSITORY / "examples" / "node" / "node_modules"
    if not packages.exists():
        pytest.skip("needs npm packages: make examples/node/node_modules/ready")
    (folder / "node_modules").symlink_to(packages)
    before = (
        'import * as ort from "onnxruntime-node";\n'
        f"const batch = 1, length = {len(row)};\n"
        f"const ids = BigInt64Array.from({row}, BigInt);\n"
        f"const mask = BigInt64Array.from({[1] * len(row)}, BigInt);\n"
    )
    after = "console.log(JSON.stringify(Array.from(sequences.data, Number)));\n"
    (folder / "block.mjs").write_text(before + block.text + after, encoding="utf-8")
    tokens = json.loads(run_in_shell("node block.mjs", folder))
    assert tokenizer.decode(tokens) == TRANSLATION


@blocks("json")
def test_config_maps_a_foreign_checkpoint(block: Block, folder: Path) -> None:
    config = json.loads(block.text)
    model = tutorial.make(d_model=16, num_heads=config["num_heads"])
    foreign = {"criterion.weight": torch.ones(3)}
    for key, value in model.state_dict().items():
        for theirs, ours in config["rename"].items():
            rest = ours.removesuffix("{weight}")
            if key.startswith(rest):
                key = theirs.removesuffix("{weight}") + key.removeprefix(rest)
                break
        foreign[key] = value
    torch.save(foreign, folder / "model.pt")
    (folder / "config.json").write_text(block.text, encoding="utf-8")
    read = load_checkpoint(folder / "model.pt", folder / "config.json")
    assert read.layout == "nn-transformer"


def test_every_other_block_says_where_it_is_run_or_why_it_is_not() -> None:
    runnable = {"python", "", "js", "json"}
    for block in BLOCKS:
        if block.run_by:
            for path in re.findall(r"tests/[\w/]+\.py", block.run_by):
                assert (REPOSITORY / path).exists(), f"{block}: {path}"
            assert "tests/" in block.run_by, str(block)
        elif not block.not_run:
            assert block.language in runnable, f"{block}: run it, or say why it is not run"
    assert {block.language for block in QUICK_START} == {"", "python"}


@pytest.mark.parametrize("block", [block for block in BLOCKS if not block.language], ids=str)
def test_commands_parse(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for command in block.commands:
        line = words(command.rpartition("| ")[2] if command.startswith("echo ") else command)
        if line[0] != "tfexport":
            continue
        for word in line:
            if word.endswith((".txt", ".tsv")):  # which have to exist
                (tmp_path / word).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / word).touch()
        COMMANDS[line[1]].make_context(line[1], line[2:])


@pytest.mark.parametrize("page", [pytest.param(page, id=page.name) for page in PAGES])
def test_commands_and_options_within_sentences_exist(page: Path) -> None:
    for text in re.findall(r"`tfexport ([^`]+)`", page.read_text(encoding="utf-8")):
        verb, *rest = text.split()
        if verb == "VERB":
            assert rest == ["--help"]
            continue
        command = COMMANDS[verb] if not verb.startswith("-") else cli
        rest = rest if not verb.startswith("-") else [verb]
        options = {name for p in command.params for name in [*p.opts, *p.secondary_opts]
                   if isinstance(p, click.Option)}  # fmt: skip
        used = {word.strip("[]") for word in rest if word.strip("[]").startswith("-")} - {"-"}
        assert used <= options, f"tfexport {text}"
