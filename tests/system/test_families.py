"""docs/families/: the commands of every page run on a small model of its kind."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.documents import read_blocks, run_in_shell
from tests.support.hf_models import make_model, save_folder
from tests.support.paths import REPOSITORY
from tests.support.tokenizer_folders import marian_folder
from tests.support.toolkits import fairseq, joeynmt, marian_nmt, opennmt_py, sockeye

PAGES = sorted((REPOSITORY / "docs" / "families").glob("*.md"))
pytestmark = [pytest.mark.peers, pytest.mark.slow]


def hugging_face(folder: Path) -> None:
    pytest.importorskip("transformers")
    text = marian_folder(folder / "text")
    vocabulary = (text / "vocab.json").read_text().replace(">>", "--")  # of one target language
    (text / "vocab.json").write_text(vocabulary)
    size = len(json.loads(vocabulary))
    ids: dict[str, Any] = {"pad_token_id": size - 1, "decoder_start_token_id": size - 1}
    saved = save_folder(make_model("marian", vocab_size=size, **ids), folder / "opus-mt-de-en")
    for file in text.iterdir():
        if file.name != "config.json":
            shutil.copy(file, saved)


def of_fairseq(folder: Path) -> None:
    case = fairseq.write(1, folder)
    for language, size in zip(("de", "en"), case.vocab, strict=True):
        lines = [f"w{i} {size - i}" for i in range(size - 4)]
        (folder / f"dict.{language}.txt").write_text("\n".join(lines) + "\n")
    (folder / "words.txt").write_text("w1 w2 w3\nw4 unheard w5\n")


def of_opennmt_py(folder: Path) -> None:
    case = opennmt_py.write(1, folder)
    for file in folder.glob("model_step_10*"):
        file.rename(folder / file.name.replace("_10", "_100"))
    assert min(case.vocab) > 12
    (folder / "words.txt").write_text("w1 w2 w3\nw4 unheard w5\n")


def of_joeynmt(folder: Path) -> None:
    (folder / "model").mkdir()
    case = joeynmt.write(1, folder / "model")
    special = ["<unk>", "<pad>", "<s>", "</s>"]
    for side, size in zip(("src", "trg"), case.vocab, strict=True):
        words = [*special, *(f"w{i}" for i in range(size - 4))]
        (folder / "model" / f"{side}_vocab.txt").write_text("\n".join(words) + "\n")
    (folder / "words.txt").write_text("w1 w2 w3\nw4 unheard w5\n")


def of_marian_nmt(folder: Path) -> None:
    case = marian_nmt.write(1, folder)
    case.path.rename(folder / "model.npz")
    assert min(case.vocab) > 12


def of_sockeye(folder: Path) -> None:
    (folder / "model").mkdir()
    case = sockeye.write(1, folder / "model")
    assert min(case.vocab) > 12


MAKERS: dict[str, Callable[[Path], None]] = {
    "fairseq": of_fairseq,
    "hugging-face": hugging_face,
    "joeynmt": of_joeynmt,
    "marian-nmt": of_marian_nmt,
    "opennmt-py": of_opennmt_py,
    "sockeye": of_sockeye,
}


@pytest.mark.exhaustive  # tests of the layouts read the same files
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_of_a_page_run(page: Path, tmp_path: Path) -> None:
    MAKERS[page.stem](tmp_path)
    (block,) = read_blocks(page)
    assert len(block.text.splitlines()) < 15
    commands = [line for line in block.commands if not line.startswith("pip install")]
    # Comparing takes long, and other tests do it.
    script = "\n".join(commands).replace(" -o ", " --no-verify -o ")
    printed = run_in_shell(script, tmp_path).splitlines()
    assert (tmp_path / commands[-1].partition("translate ")[2].split()[0]).is_dir()
    lines = tmp_path / "words.txt"
    wanted = len(lines.read_text().splitlines()) if lines.exists() else 1
    assert len(printed) >= wanted  # a line each, which may be empty: weights are drawn


def test_every_page_is_in_the_table() -> None:
    table = (REPOSITORY / "docs" / "families.md").read_text()
    assert all(f"(families/{page.name})" in table for page in PAGES)
