"""The demo model in every form that it ships in, and eager PyTorch's answer to its test set.

The oracle is torch.nn.Transformer on the shipped weights upcast to float32, with the tutorial's
uncached greedy loop, one sentence at a time. ``make test`` takes a 24th of the test set. What
takes long is made once for all workers, and not compared on the way where a test compares it.
"""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from tests.conftest import WORKER, Once, compare_few_shapes
from tests.support import tutorial
from tests.support.paths import REPOSITORY
from tfexport.export import export

LIMIT = 60
PARTS = 8
FOLDER = REPOSITORY / "examples" / "de-en"


@pytest.fixture(scope="session")
def bundle(once: Once) -> Path:
    def make(path: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            compare_few_shapes(patch)  # that it compares a model of this size at all
            export(FOLDER, path, output_attentions=True)

    return once("de-en.bundle", make)


@pytest.fixture(scope="session")
def generate(once: Once) -> Path:
    return once("fused.onnx", lambda path: export(FOLDER, path, graph="generate", verify=False))


@pytest.fixture(scope="session")
def portable(once: Once) -> Path:
    return once(
        "portable.onnx",
        lambda path: export(FOLDER, path, graph="generate", portable=True, verify=False),
    )


@pytest.fixture(scope="session")
def torchscript(once: Once) -> Path:
    return once("model.ts", lambda path: export(FOLDER, path, graph="torchscript", verify=False))


@pytest.fixture(scope="session")
def program(once: Once) -> Path:
    return once("model.pt2", lambda path: export(FOLDER, path, graph="torch.export", verify=False))


@pytest.fixture(scope="session")
def all_pairs() -> list[list[str]]:
    lines = (FOLDER / "test.tsv").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 913
    return [line.split("\t") for line in lines]


@pytest.fixture(
    scope="session",
    params=[24, pytest.param(1, marks=pytest.mark.exhaustive)],
    ids=["a 24th", "all"],
)
def pairs(request: pytest.FixtureRequest, all_pairs: list[list[str]]) -> list[list[str]]:
    """Those of the test set that are decoded."""
    return all_pairs[:: request.param]


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(FOLDER / "tokenizer.json"))


@pytest.fixture(scope="session")
def rows(pairs: list[list[str]], tokenizer: Tokenizer) -> list[list[int]]:
    """Source ids of the test set."""
    return [[2, *tokenizer.encode(pair[0]).ids, 3] for pair in pairs]


@pytest.fixture(scope="session")
def expected(rows: list[list[int]], once: Once) -> list[list[int]]:
    """Eager's tokens. Each worker begins at another part, so that none waits for another."""
    first = 0 if WORKER == "master" else int(WORKER.removeprefix("gw")) * PARTS // 2 % PARTS
    found: dict[int, list[list[int]]] = {}
    for part in [*range(first, PARTS), *range(first)]:

        def make(path: Path, rows: list[list[int]] = rows[part::PARTS]) -> None:
            path.write_text(json.dumps(eager(rows)))

        found[part] = json.loads(once(f"eager/{len(rows)}/{part}.json", make).read_text())
    tokens = [found[i % PARTS][i // PARTS] for i in range(len(rows))]
    assert max(map(len, tokens)) < LIMIT, "so that a higher limit makes no difference"
    return tokens


@pytest.fixture(scope="session")
def texts(expected: list[list[int]], tokenizer: Tokenizer) -> list[str]:
    """Eager's tokens as text."""
    return [tokenizer.decode(row) for row in expected]


def eager(rows: list[list[int]]) -> list[list[int]]:
    config = json.loads((FOLDER / "config.json").read_text())
    model = tutorial.TutorialModel(
        source_size=6000,
        target_size=6000,
        d_model=256,
        num_heads=config["num_heads"],
        encoder_layers=3,
        decoder_layers=3,
        d_ff=512,
        length=512,
    )
    state = load_file(FOLDER / "model.safetensors")
    assert {tensor.dtype for tensor in state.values()} == {torch.float16}
    model.load_state_dict({key: tensor.float() for key, tensor in state.items()})
    model.eval()
    return [tutorial.greedy(model, row, LIMIT, config["bos_id"], config["eos_id"]) for row in rows]
