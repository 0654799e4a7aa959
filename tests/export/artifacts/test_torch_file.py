"""The torch files, loaded by torch alone: tokens, edges, bad input, metadata, sizes."""

import json
import random
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.conftest import SETTINGS, Once
from tests.export.artifacts.test_originals import FAMILIES, LIMIT, ROWS, greedy
from tests.support import tutorial
from tests.support.combinations import few_of
from tests.support.originals import rebuilt
from tests.support.originals.weights import shake
from tests.support.paths import REPOSITORY
from tfexport.errors import ConfigError
from tfexport.export import export, verify
from tfexport.model_src import TransformerConfig, build_transformer

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
KINDS = ["torchscript", "torch.export"]


class Loaded:
    """Either kind behind one call, loaded as its users do."""

    def __init__(self, path: Path, kind: str) -> None:
        if kind == "torchscript":
            self.module = torch.jit.load(path)
            self.run = self.module.generate
        else:
            self.run = torch.export.load(path).module()

    def __call__(self, ids: Tensor, mask: Tensor, max_length: int) -> Tensor:
        with torch.no_grad():
            sequences: Tensor = self.run(ids, mask, max_length)
        return sequences


@pytest.fixture(scope="session", params=KINDS)
def path(
    request: pytest.FixtureRequest, once: Once, tutorial_model: tutorial.TutorialModel
) -> Path:
    program = request.param == "torch.export"

    def make(path: Path) -> None:
        export(
            tutorial_model,
            path,
            config=SETTINGS,
            graph="torch.export" if program else "torchscript",
        )

    return once(f"tiny/{request.param}", make)


@pytest.fixture(scope="session")
def loaded(path: Path) -> Loaded:
    return Loaded(path, path.name)


def pad(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    longest = max(map(len, rows))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    return ids, mask


def tokens(sequences: Tensor) -> list[list[int]]:
    """Rows up to their end token; behind it there is only padding."""
    found = []
    for row in sequences.tolist():
        end = row.index(2) if 2 in row else len(row)
        assert set(row[end + 1 :]) <= {0}
        found.append(row[:end])
    return found


def test_generate_equals_the_tutorials_loop(
    loaded: Loaded, tutorial_model: tutorial.TutorialModel
) -> None:
    generator = random.Random(3)
    rows = [[generator.randrange(17) for _ in range(generator.randint(1, 9))] for _ in range(40)]
    expected = [tutorial.greedy(tutorial_model, row, 20, bos=1, eos=2) for row in rows]
    assert len({len(row) for row in expected}) > 3, "rows end at different steps"
    for batch in (rows, rows[:1], rows[7:9]):
        at = rows.index(batch[0])
        assert tokens(loaded(*pad(batch), 20)) == expected[at : at + len(batch)]


@pytest.mark.slow
@pytest.mark.usefixtures("few_shapes")
@pytest.mark.parametrize("kind", few_of(KINDS, "torchscript"))
@pytest.mark.parametrize("family", few_of(FAMILIES, "annotated-pre"))
def test_every_family_generates(family: str, kind: str, tmp_path: Path) -> None:
    model, scores, settings, _ = FAMILIES[family]
    torch.save(model.state_dict(), tmp_path / "model.pt")
    words = [word.removeprefix("--set=") for word in settings]
    ids = [f"{key}={value}" for key, value in SETTINGS.items()]
    result = export(
        tmp_path / "model.pt",
        tmp_path / "m",
        settings=[*words, *ids],
        graph=kind,
    )
    assert result.report is not None
    assert result.report.passed
    sequences = Loaded(tmp_path / "m", kind)(*pad(ROWS), LIMIT)
    assert tokens(sequences) == [greedy(scores, row) for row in ROWS]


def test_edges_have_a_defined_answer(loaded: Loaded, path: Path) -> None:
    ids, mask = torch.tensor([[5, 6, 7], [8, 0, 0]]), torch.tensor([[1, 1, 1], [1, 0, 0]])
    assert loaded(ids, mask, 0).shape == (2, 0)
    assert loaded(ids, mask, 1).shape == (2, 1)
    assert loaded(*pad([[9, 2]]), 50).tolist() == [[2]], "it stops when all rows have ended"
    assert loaded(ids, mask, 10**9).size(1) <= 64, "the position table bounds it"
    sequences = loaded(ids, torch.tensor([[1, 1, 1], [0, 0, 0]]), 6)
    assert set(sequences[1].tolist()) == {0}, "a row that is all padding says nothing"
    alone = loaded(*pad([[5, 6, 7]]), 6)
    assert sequences[0, : alone.size(1)].tolist() == alone[0].tolist()
    if path.name == "torchscript":
        assert loaded(ids, mask, -5).shape == (2, 0)
        assert loaded(ids[:0], mask[:0], 5).shape == (0, 0)
        assert loaded(ids[:, :0], mask[:, :0], 5).shape == (2, 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"ids": torch.tensor([[5, -1, 7], [8, 0, 0]])},
        {"ids": torch.tensor([[5, 17, 7], [8, 0, 0]])},
        {"ids": torch.tensor([[5, 6, 7], [8, 0, 0]], dtype=torch.int32)},
        {"ids": torch.tensor([5, 6, 7])},
        {"mask": torch.ones((2, 1), dtype=torch.int64)},
        {"mask": torch.ones((1, 3), dtype=torch.int64)},
        {"mask": torch.zeros((2, 3))},
        {"ids": torch.full((1, 65), 5), "mask": torch.ones((1, 65), dtype=torch.int64)},
    ],
    ids=["negative", "beyond", "int32", "rank 1", "mask column", "mask row", "float mask", "long"],
)
def test_bad_input_is_an_error_and_not_tokens(loaded: Loaded, changes: dict[str, Tensor]) -> None:
    good = {
        "ids": torch.tensor([[5, 6, 7], [8, 0, 0]]),
        "mask": torch.tensor([[1, 1, 1], [1, 0, 0]]),
    }
    inputs = {**good, **changes}
    with pytest.raises((RuntimeError, IndexError, AssertionError, torch.jit.Error)):
        loaded(inputs["ids"], inputs["mask"], 6)


@pytest.mark.parametrize("path", ["torchscript"], indirect=True)
def test_the_other_methods_of_torchscript_score_and_step(path: Path) -> None:
    module = torch.jit.load(path)
    ids, mask = pad([[5, 6, 7], [8]])
    target = torch.tensor([[1, 4, 9], [1, 3, 3]])
    with torch.no_grad():
        logits = module(ids, mask, target, torch.ones_like(target))
        hidden, cross = module.encode(ids, mask)
        stepped, present = module.step(target[:, :2], [], cross, mask)
        last, _ = module.step(target[:, 2:], present, cross, mask)
    assert hidden.shape == (2, 3, 8)
    torch.testing.assert_close(torch.cat([stepped, last], dim=1), logits, atol=1e-5, rtol=1e-5)
    with pytest.raises(torch.jit.Error, match="expected the shape"):
        module.step(target[:, :1], [], cross, mask[:, :1])


@pytest.mark.parametrize("path", few_of(KINDS, "torchscript"), indirect=True)
def test_a_process_without_tfexport_loads_it(path: Path) -> None:
    load = "jit" if path.name == "torchscript" else "export"
    call = "m.generate" if load == "jit" else "m.module()"
    code = f"""
import sys
sys.modules["tfexport"] = None
import torch
m = torch.{load}.load({str(path)!r})
print({call}(torch.tensor([[9, 2]]), torch.ones((1, 2), dtype=torch.int64), 5).tolist())
"""
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[[2]]"


def test_metadata_travels_inside_and_no_path_of_this_machine(path: Path) -> None:
    extra: dict[str, Any] = {"tfexport.json": ""}
    if path.name == "torchscript":
        torch.jit.load(path, _extra_files=extra)
    else:
        torch.export.load(path, extra_files=extra)
    metadata = json.loads(extra["tfexport.json"])
    assert metadata["kind"] == path.name
    assert metadata["parity"]["passed"]
    assert metadata["config"]["eos_id"] == 2
    with zipfile.ZipFile(path) as archive:
        content = b"".join(archive.read(name) for name in archive.namelist())
    assert str(REPOSITORY).encode() not in content
    assert b"site-packages" not in content


@pytest.mark.parametrize("kind", few_of(KINDS, "torchscript"))
@pytest.mark.parametrize("tied", few_of([False, True], True), ids=["untied", "tied"])
def test_file_is_hardly_larger_than_its_weights(tmp_path: Path, tied: bool, kind: str) -> None:
    config = TransformerConfig(
        d_model=64, num_heads=2, num_encoder_layers=1, num_decoder_layers=1, d_ff=64,
        source_vocab_size=9000, target_vocab_size=9000, tie_embeddings=tied, tie_output=tied,
        max_positions=40, **SETTINGS,
    )  # fmt: skip
    model = build_transformer(config)
    # A program's text takes about 1 KB an operator: the tables are as large as they commonly are.
    export(
        model,
        tmp_path / "m",
        graph=kind,
        verify=False,
    )
    weights = sum(p.numel() * 4 for p in model.parameters()) + 40 * 64 * 4
    assert (tmp_path / "m").stat().st_size < 1.05 * weights + 256 * 1024


@pytest.mark.usefixtures("few_shapes")
def test_model_without_embeddings_has_all_but_generate(tmp_path: Path) -> None:
    model = shake(rebuilt.Rebuilt(encoders=1, decoders=1))
    torch.save(model.state_dict(), tmp_path / "model.pt")
    settings = ["num_heads=4", "num_encoder_layers=1", "num_decoder_layers=1"]
    result = export(tmp_path / "model.pt", tmp_path / "m.ts", settings=settings)
    assert result.report is not None
    assert result.report.passed
    module = torch.jit.load(tmp_path / "m.ts")
    assert not hasattr(module, "generate")
    with pytest.raises(ConfigError, match="no embeddings"):
        export(tmp_path / "model.pt", tmp_path / "m.pt2", settings=settings, graph="torch.export")


@pytest.mark.usefixtures("few_shapes")
@pytest.mark.parametrize("path", few_of(KINDS, "torchscript"), indirect=True)
def test_another_checkpoint_is_found_out(
    path: Path, tmp_path: Path, tutorial_model: tutorial.TutorialModel
) -> None:
    state = {key: value.clone() for key, value in tutorial_model.state_dict().items()}
    torch.save(state, tmp_path / "same.pt")
    assert verify(path, tmp_path / "same.pt").passed
    state["transformer.decoder.layers.0.linear1.bias"] += 0.3
    torch.save(state, tmp_path / "other.pt")
    assert not verify(path, tmp_path / "other.pt").passed
