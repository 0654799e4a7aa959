"""docs/guides/: one page for each way in and out, whose commands are followed in a folder.

Installing is left out: tests/system/test_release.py does it, in environments of its own.
"""

import json
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import tutorial_text
from tests.support.documents import Block, read_blocks, run_in_shell
from tests.support.originals import annotated
from tests.support.originals.weights import shake
from tests.support.paths import REPOSITORY
from tests.system.demo.conftest import bundle
from tests.system.test_families import hugging_face, of_fairseq
from tests.system.test_tutorial import ENGLISH, GERMAN, ids

__all__ = ["bundle"]  # a fixture: the demo model

GUIDES = sorted((REPOSITORY / "docs" / "guides").glob("*.md"))
MOST_LINES = 15
# The reader's own code around nn.Transformer.
CORE = """
import math
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.core = nn.Transformer(32, 4, 2, 2, dim_feedforward=64, batch_first=True)
        self.source, self.target = nn.Embedding(17, 32), nn.Embedding(19, 32)
        self.head = nn.Linear(32, 19)

    def embed(self, table, ids):
        rate = torch.exp(-math.log(10000) * torch.arange(0, 32, 2) / 32)
        angles = torch.arange(ids.size(1))[:, None] * rate
        return table(ids) * math.sqrt(32) + torch.stack([angles.sin(), angles.cos()], 2).flatten(1)

    def forward(self, source, target):
        later = self.core.generate_square_subsequent_mask(target.size(1))
        source, target = self.embed(self.source, source), self.embed(self.target, target)
        return self.head(self.core(source, target, tgt_mask=later))


def reference(input_ids, decoder_input_ids):
    model = Model().eval()
    model.load_state_dict(torch.load("model.pt", map_location="cpu", weights_only=True))
    return model(input_ids, decoder_input_ids)
"""

pytestmark = pytest.mark.slow


def shell_of(name: str) -> Block:
    (block,) = [
        block
        for block in read_blocks(REPOSITORY / "docs" / "guides" / f"{name}.md")
        if not block.language
    ]
    return block


def follow(name: str, folder: Path) -> list[str]:
    """Run the commands of a guide, without those that install; give the lines that they print."""
    commands = []
    for line in shell_of(name).commands:
        if "--reference" not in line:  # comparing takes long, and other tests do it
            line = line.replace("tfexport onnx ", "tfexport onnx --no-verify ")
        commands += [] if line.startswith("pip install") else [line]
    return run_in_shell("\n".join(commands), folder).splitlines()


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_guides_are_short_and_say_how_to_install(page: Path) -> None:
    blocks = read_blocks(page)
    lines = [line for block in blocks for line in block.text.splitlines() if line.strip()]
    assert 0 < len(lines) < MOST_LINES
    assert any(line.startswith(("pip install ", "npm ci ")) for line in lines)


def test_every_guide_is_tested() -> None:
    assert {page.stem for page in GUIDES} == {*WAYS_IN, *WAYS_OUT, "browser", "cpp"}


def tutorials(folder: Path) -> None:
    model = tutorial_text.make_model(len(GERMAN), len(ENGLISH))
    torch.save(model.state_dict(), folder / "model.pt")
    torch.save({"de": ids(GERMAN), "en": ids(ENGLISH)}, folder / "vocab.pt")


def annotateds(folder: Path) -> None:
    state = shake(annotated.Annotated()).state_dict()
    torch.save(state, folder / "model.pt")
    for side, key in (("source", "src_embed.0.lut.weight"), ("target", "tgt_embed.0.lut.weight")):
        special = ["<s>", "</s>", "<blank>", "<unk>"]
        words = [*special, *(f"w{i}" for i in range(4, state[key].shape[0]))]
        (folder / f"{side}.txt").write_text("\n".join(words) + "\n")
    (folder / "words.txt").write_text("w5 w6\nw7\n")


def around_transformer(folder: Path) -> None:
    """A state dict, the code that it belongs to, and the page's file of names."""
    blocks = read_blocks(REPOSITORY / "docs" / "guides" / "nn-transformer.md")
    (names,) = [block.text for block in blocks if block.language == "json"]
    (folder / "names.json").write_text(names)
    (folder / "my_model.py").write_text(CORE)
    made: dict[str, Any] = {}
    exec(CORE, made)
    torch.manual_seed(3)
    torch.save(made["Model"]().state_dict(), folder / "model.pt")


def modules(folder: Path) -> None:
    """The module of docs/modules.md, and what the page makes for it."""
    python = [b for b in read_blocks(REPOSITORY / "docs" / "modules.md") if b.language == "python"]
    (module,) = [block.text for block in python if block.text.startswith("# my_model.py\n")]
    (made,) = [block.text for block in python if '"rows.npz"' in block.text]
    (folder / "my_model.py").write_text(module)
    (folder / "make.py").write_text(made)
    run_in_shell("python make.py", folder)


WAYS_IN: dict[str, tuple[Callable[[Path], None], str, int]] = {
    # what lies in the reader's folder; the bundle; lines of output that are decoded
    "pytorch-tutorial": (tutorials, "de-en.bundle", 1),
    "nn-transformer": (around_transformer, "model.bundle", 1),
    "annotated": (annotateds, "model.bundle", 0),
    "hugging-face": (hugging_face, "de-en.bundle", 1),
    "toolkits": (of_fairseq, "model.bundle", 2),
    "any-module": (modules, "reader.bundle", 3),
}


@pytest.mark.exhaustive  # tests of the layouts and of modules export the same
@pytest.mark.parametrize("name", WAYS_IN)
def test_way_in_ends_in_a_bundle_that_decodes(name: str, tmp_path: Path) -> None:
    make, bundle, lines = WAYS_IN[name]
    make(tmp_path)
    printed = follow(name, tmp_path)
    assert (tmp_path / bundle / "manifest.json").exists()
    assert len(printed) > lines
    if name == "annotated":
        assert len((tmp_path / "translated.txt").read_text().splitlines()) == 2
    if name == "nn-transformer":
        assert any("equal to your reference" in line for line in printed)
        assert printed[-1] == "14 13 10 12"  # as the uncached loop over the reference has it


def in_clone(folder: Path, bundle: Path) -> None:
    (folder / "de-en.bundle").symlink_to(bundle)
    (folder / "native").symlink_to(REPOSITORY / "native")  # which examples read texts with
    (folder / "examples").mkdir()
    for path in (REPOSITORY / "examples").iterdir():
        (folder / "examples" / path.name).symlink_to(path)


def from_python(folder: Path) -> None:
    (block,) = [b for b in read_blocks(GUIDES[0].with_name("python.md")) if b.language == "python"]
    (folder / "block.py").write_text(block.text, encoding="utf-8")
    printed = run_in_shell("python block.py", folder).splitlines()
    assert printed == ["Good morning.", "Where's the station?"]


def over_http(folder: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    commands = [line for line in shell_of("http").commands if not line.startswith("pip install")]
    script = "\n".join(commands).replace("8000", str(port)).replace("localhost", "127.0.0.1")
    printed = run_in_shell(f"set -m\n{script}", folder)
    models, answer = (json.loads(text) for text in _objects(printed))
    assert [model["name"] for model in models["models"]] == ["de-en"]
    assert answer["translations"][0]["text"] == "Good morning."


def _objects(text: str) -> list[str]:
    """JSON objects that stand one behind the other."""
    decoder, found, place = json.JSONDecoder(), list[str](), 0
    while place < len(text.rstrip()):
        _, end = decoder.raw_decode(text[place:].lstrip())
        start = place + len(text[place:]) - len(text[place:].lstrip())
        found.append(text[start : start + end])
        place = start + end
    return found


def over_a_corpus(folder: Path) -> None:
    assert follow("corpus", folder)[-1] == "Good morning."


def in_node(folder: Path) -> None:
    if not (REPOSITORY / "examples" / "node" / "node_modules").exists():
        pytest.skip("needs npm packages: make examples/node/node_modules/ready")
    commands = shell_of("node").commands
    shutil.copytree(
        REPOSITORY / "examples" / "node", folder / "copy", ignore=shutil.ignore_patterns("node_*")
    )
    (folder / "examples" / "node").unlink()
    (folder / "copy").rename(folder / "examples" / "node")
    modules = folder / "examples" / "node" / "node_modules"
    modules.symlink_to(REPOSITORY / "examples" / "node" / "node_modules")
    commands = [line for line in commands if not line.startswith("npm ci")]  # make has done it
    assert run_in_shell("\n".join(commands), folder).splitlines()[-1] == "Good morning."


WAYS_OUT = {"python": from_python, "http": over_http, "corpus": over_a_corpus, "node": in_node}


@pytest.mark.parametrize("name", WAYS_OUT)
def test_way_out_says_what_eager_says(name: str, tmp_path: Path, bundle: Path) -> None:
    in_clone(tmp_path, bundle)
    WAYS_OUT[name](tmp_path)


def test_lines_of_the_cpp_guide_are_those_that_its_test_builds() -> None:
    (long,) = [
        block
        for block in read_blocks(REPOSITORY / "docs" / "embedding" / "cpp.md")
        if not block.language
    ]
    assert shell_of("cpp").commands[1:] == long.commands
