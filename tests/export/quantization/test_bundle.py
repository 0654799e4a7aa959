"""Quantised weights: the arithmetic, the graphs, the quality gate."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.conftest import SETTINGS
from tests.export.conftest import make_wide
from tests.support import tutorial
from tests.support.links import LINKS
from tfexport.bundle import read_manifest
from tfexport.cli.description_lines import weights_text
from tfexport.cli.main import cli
from tfexport.errors import BundleError, ConfigError, InputError, QualityError
from tfexport.export import Input, export, quantize, verify
from tfexport.export.ir_tools.nodes import Role, read_role, write_role
from tfexport.export.ir_tools.quantization import (
    BLOCK,
    quantize_blockwise,
    quantize_per_column,
    quantize_per_row,
    round_to_bfloat16,
)
from tfexport.export.quantization.graphs import SMALLEST, find_weight_uses, quantize_graphs
from tfexport.runtime import Translator
from tfexport.runtime.model.onnxruntime_model import OnnxModel
from tfexport.weight_table import read_weight_table

pytestmark = pytest.mark.slow

ROWS = [[5, 6, 7, 40], [8], [9, 2, 4, 4, 11, 88], [16, 3]]


@pytest.fixture(scope="session")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("samples") / "ids.txt"
    draw = np.random.default_rng(0)
    rows = [draw.integers(3, 90, size=draw.integers(1, 12)) for _ in range(40)]
    path.write_text("".join(" ".join(map(str, row)) + "\n" for row in rows), encoding="utf-8")
    return path


@given(seed=st.integers(0, 1000), shape=st.tuples(st.integers(1, 40), st.integers(1, 40)))
def test_rounding_is_at_most_half_a_step(seed: int, shape: tuple[int, int]) -> None:
    matrix = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    matrix[0] = 0  # a row of nothing has a scale all the same
    values, scale = quantize_per_row(matrix)
    assert values.dtype == np.int8
    assert (np.abs(values * scale[:, None] - matrix) <= scale[:, None] * 0.5001).all()
    columns, column_scale = quantize_per_column(matrix)
    assert np.array_equal(columns, quantize_per_row(matrix.T)[0].T)
    assert np.array_equal(column_scale, quantize_per_row(matrix.T)[1])


def test_blocks_hold_four_bits_a_weight() -> None:
    matrix = np.random.default_rng(0).normal(size=(70, 5)).astype(np.float32)
    packed, scale = quantize_blockwise(matrix)
    assert packed.shape == (5, 3, BLOCK // 2), "70 rows are three blocks, the last one padded"
    low, high = packed & 15, packed >> 4
    values = np.stack([low, high], -1).reshape(5, -1).astype(np.float32) - 8
    steps = np.repeat(scale.reshape(5, 3), BLOCK, axis=1)
    restored = (values * steps)[:, :70].T
    assert (np.abs(restored - matrix) <= steps[:, :70].T * 0.5001).all()


@given(bits=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=50))
def test_bf16_is_rounded_as_torch_rounds(bits: list[int]) -> None:
    values = np.array([*bits, 0x3F808000, 0x3F818000, 0x7F7FFFFF, 1, 0x80000000], np.uint32)
    floats = values.view(np.float32)
    rounded = round_to_bfloat16(floats)
    expected = torch.from_numpy(floats).bfloat16().float().numpy()
    finite = np.isfinite(floats)
    assert rounded[finite].tobytes() == expected[finite].tobytes()
    assert rounded[~finite].tobytes() == floats[~finite].tobytes()


def test_bf16_rounds_matrices_and_tables_and_nothing_else(
    tmp_path: Path, tied_bundle: Path
) -> None:
    quantize(tied_bundle, tmp_path / "q.bundle", "bf16")
    before, after = (_parameters(folder) for folder in (tied_bundle, tmp_path / "q.bundle"))
    assert before.keys() == after.keys()
    rounded = {name for name in before if before[name].tobytes() != after[name].tobytes()}
    assert rounded == {
        name
        for name, array in before.items()
        if array.ndim == 2 and min(array.shape) >= SMALLEST and "positions" not in name
    }
    for name in rounded:
        expected = torch.from_numpy(before[name].copy()).bfloat16().float().numpy()
        assert np.array_equal(after[name], expected)
    # Every graph reads them, and each tensor is stored once.
    sizes = [
        (folder / "weights.bin").stat().st_size for folder in (tied_bundle, tmp_path / "q.bundle")
    ]
    assert sizes[0] == sizes[1]


def _parameters(folder: Path) -> dict[str, Any]:
    content = np.frombuffer((folder / "weights.bin").read_bytes(), np.uint8)
    return {
        name: np.ascontiguousarray(weight.values(content))
        for name, weight in read_weight_table(folder, content.size).items()
    }


@pytest.mark.parametrize(("kind", "room"), [("int8", 0.1), ("int4", 1.5), ("bf16", 0.04)])
def test_logits_stay_near_the_originals(
    tmp_path: Path, wide_bundle: Path, wide: tutorial.TutorialModel, kind: str, room: float
) -> None:
    made = quantize(wide_bundle, tmp_path / "q.bundle", kind)
    assert made.quality is None
    assert made.manifest.quantization is not None
    assert made.manifest.quantization["gate"] == "not gated"
    runtime = OnnxModel(tmp_path / "q.bundle", made.manifest)
    target = [[1, 5, 9], [1, 7, 50], [1, 3, 4], [1, 100, 6]]
    logits = runtime.step(np.array(target), runtime.encode(ROWS))
    worst = 0.0
    for row, given_target, ours in zip(ROWS, target, logits, strict=True):
        with torch.no_grad():
            hidden = wide.encode(torch.tensor(row)[:, None])
            eager = wide.decode(torch.tensor(given_target)[:, None], hidden)[:, 0].numpy()
        worst = max(worst, float(np.abs(ours - eager).max() / np.abs(eager).max()))
    assert 1e-6 < worst < room, "it is quantised, and still the same model"
    some = np.arange(0, 110, 7)
    short = runtime.step(np.array(target), runtime.encode(ROWS), some)
    # The shortlist multiplies in float32 with the same int8 weights.
    assert np.abs(short[:, :, some] - logits[:, :, some]).max() < 0.05 * np.abs(logits).max()
    # One graph with the loop inside and one that is stepped: the same weights, row by row.
    translator = Translator(tmp_path / "q.bundle", engine="onnxruntime")
    for row in ROWS:
        called = translator.generate([row], max_length=6)[0].hypotheses[0]
        stepped = translator.generate([row], max_length=6, return_token_scores=True)[0].hypotheses[
            0
        ]
        assert called.tokens == stepped.tokens
        # Behind the loop the same int8 weights are multiplied in float32, as the shortlist does.
        state, given = runtime.encode([row]), [1, *called.tokens, *([2] * called.finished)]
        every = np.arange(runtime.vocab_size)
        log_probs = [
            torch.from_numpy(runtime.step(np.array([[before]]), state, every)[0, 0])
            .log_softmax(-1)[after]
            .item()
            for before, after in pairwise(given)
        ]
        assert called.score == pytest.approx(np.mean(log_probs), abs=1e-4)


def test_files_shrink_and_tied_tables_stay_one(tmp_path: Path, tied_bundle: Path) -> None:
    table = make_wide(tied=True).tgt_tok_emb.embedding.weight.detach().numpy()
    rows = quantize_per_row(table)[0]
    for kind in ("int8", "int4"):
        quantize(tied_bundle, tmp_path / kind, kind)
        before, content = (
            (folder / "weights.bin").read_bytes() for folder in (tied_bundle, tmp_path / kind)
        )
        assert len(content) < len(before)
        assert content.count(rows.tobytes()) == 1
        assert content.count(np.ascontiguousarray(rows.T).tobytes()) == 0
        assert content.count(table.tobytes()) == 0


def test_gate_passes_what_agrees_and_says_how_far(
    tmp_path: Path, wide_bundle: Path, samples: Path
) -> None:
    told: list[str] = []
    made = quantize(wide_bundle, tmp_path / "q.bundle", samples=samples,
                           progress=lambda step, done, total: told.append(step))  # fmt: skip
    assert made.quality is not None
    assert made.quality.passed
    assert 0.97 <= made.quality.agreement <= 1
    record = read_manifest(tmp_path / "q.bundle").quantization
    assert record is not None
    assert record["weights"] == "int8"
    assert record["gate"]["samples"] == 40
    values = list(record["sensitivity"].values())
    assert len(values) > 12
    assert values == sorted(values, reverse=True)
    assert all(value > 0 for value in values)
    assert "measuring each parameter" in told


def test_gate_keeps_what_hurts_or_fails_and_leaves_nothing(
    tmp_path: Path, wide_bundle: Path, samples: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tfexport.export.quantization.quality.LEAST_AGREEMENT", 1.1)
    monkeypatch.setattr("tfexport.export.quantization.bundle.MOST_KEPT", 2)
    with pytest.raises(
        QualityError, match=r"int4 weights change too much: .*kept in float32.*int8"
    ):
        quantize(wide_bundle, tmp_path / "q.bundle", "int4", samples=samples)
    assert not list(tmp_path.iterdir())
    with pytest.raises(ConfigError, match="accept_loss requires samples"):
        quantize(wide_bundle, tmp_path / "q.bundle", accept_loss=True)
    accepted = quantize(wide_bundle, tmp_path / "q.bundle", samples=samples, accept_loss=True)
    assert accepted.quality is not None
    assert not accepted.quality.passed
    assert len(accepted.kept) == 2
    assert accepted.manifest.quantization is not None
    assert not accepted.manifest.quantization["gate"]["passed"]
    shown = CliRunner().invoke(cli, ["inspect", str(tmp_path / "q.bundle")]).stdout
    assert "too few, but --accept-loss was given" in " ".join(shown.split())
    gate = {"agreement": 0.95, "tokens": 20, "built_in": True, "passed": True}
    assert weights_text({"weights": "int8", "kept": [], "gate": gate}) == (
        "int8, 95.00% of 20 tokens are those of float32 (built-in samples); left in float32: none"
    )
    shutil.rmtree(tmp_path / "q.bundle")
    # With a bar that only a model without its worst parameter quantised takes, that one is kept.
    judged: list[int] = []

    def passed(self: Any) -> bool:
        judged.append(1)
        return len(judged) > 1

    monkeypatch.setattr("tfexport.export.quantization.quality.Quality.passed", property(passed))
    made = quantize(wide_bundle, tmp_path / "q.bundle", samples=samples)
    assert made.manifest.quantization is not None
    assert list(made.kept) == list(made.manifest.quantization["sensitivity"])[: len(made.kept)]
    assert made.kept
    content = (tmp_path / "q.bundle" / "decoder.onnx").read_bytes()
    names = [name for name in made.kept if name.startswith("decoder")]
    assert all(f"{name}.T.int8".encode() not in content for name in names)


def test_text_samples_are_gated_on_bleu(tmp_path: Path, tiny_bundle: Path) -> None:
    path = tmp_path / "samples.tsv"
    translator = Translator(tiny_bundle)
    texts = [f"w{4 + i} w{16 - i} w7 w8" for i in range(10)]
    references = [result.text for result in translator.translate(texts)]
    path.write_text(
        "".join(f"{t}\t{r}\n" for t, r in zip(texts, references, strict=True)), encoding="utf-8"
    )
    # Nothing in it is large enough to be quantised, so nothing changes.
    made = quantize(tiny_bundle, tmp_path / "q.bundle", samples=path)
    assert made.quality is not None
    assert made.quality.bleu == pytest.approx(100)
    assert made.quality.bleu_loss == pytest.approx(0)
    path.write_text("w5\n" + "w5 " * 100 + "\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"samples\.tsv:2: 101 tokens exceed"):
        quantize(tiny_bundle, tmp_path / "r.bundle", samples=path)
    path.write_text("\n\n", encoding="utf-8")
    with pytest.raises(InputError, match="holds no sample"):
        quantize(tiny_bundle, tmp_path / "r.bundle", samples=path)


def test_what_cannot_be_quantised_says_why(
    tmp_path: Path, wide_bundle: Path, wide: tutorial.TutorialModel
) -> None:
    with pytest.raises(ConfigError, match="'int3' is not one of int8, int4, bf16"):
        quantize(wide_bundle, tmp_path / "q.bundle", "int3")
    quantize(wide_bundle, tmp_path / "q.bundle")
    with pytest.raises(BundleError, match="its weights are int8 already"):
        quantize(tmp_path / "q.bundle", tmp_path / "r.bundle")
    with pytest.raises(BundleError, match=r"int8 weights.*verify a float32 export"):
        verify(tmp_path / "q.bundle", wide, config=SETTINGS)


def test_command_needs_no_torch(tmp_path: Path, wide_bundle: Path, samples: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None; from tfexport.cli.main import main; "
        "sys.argv[0] = 'tfexport'; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "quantize", str(wide_bundle), "-o", str(tmp_path / "q.bundle"),
         "--samples", str(samples)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "int8 weights" in done.stdout
    assert "tokens agree" in done.stdout
    shown = CliRunner().invoke(cli, ["inspect", str(tmp_path / "q.bundle")]).stdout
    assert "before quantising" in shown
    assert "int8, " in shown
    assert "tokens are those of float32; left in float32: " in shown


@pytest.mark.parametrize("make", LINKS.values(), ids=LINKS.keys())
def test_a_bundle_of_links_is_quantised_as_any_other(
    make: Callable[[Path, Path], Path], tmp_path: Path, wide_bundle: Path
) -> None:
    made = quantize(make(wide_bundle, tmp_path), tmp_path / "linked.bundle")
    assert made.manifest.files == quantize(wide_bundle, tmp_path / "q.bundle").manifest.files


class _Tied(nn.Module):
    """A model of a user, whose table of embeddings is its projection too."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(100, 32)
        self.encoder = nn.GRU(32, 32, batch_first=True)
        self.decoder = nn.GRU(32, 32, batch_first=True)

    def forward(self, input_ids: Tensor, decoder_input_ids: Tensor) -> Tensor:
        """Logits (B,T,100) of ids (B,S) and (B,T)."""
        _, memory = self.encoder(self.table(input_ids))
        states, _ = self.decoder(self.table(decoder_input_ids), memory)
        return nn.functional.linear(states, self.table.weight)


@pytest.fixture(scope="module", name="tied_module")
def _tied_module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("tied") / "tied.bundle"
    export(
        _Tied().eval(), path, pad_id=0, bos_id=1, eos_id=2, max_length=8, verify=False,
        inputs=[Input("input_ids", "int64", ("batch", "length"))],
    )  # fmt: skip
    return path


def _tables(folder: Path) -> dict[str, set[str]]:
    """The types of the table in each graph that has it."""
    types = dict[str, set[str]]()
    for role, file in read_manifest(folder).graphs.items():
        for graph in ir.load(folder / file).graphs():
            for value in graph.initializers.values():
                if value.const_value is not None and value.const_value.size == 100 * 32:
                    types.setdefault(role, set()).add(value.const_value.dtype.name)
    return types


def test_table_of_a_module_that_is_its_projection_is_int8_in_all_graphs(
    tied_module: Path, tmp_path: Path
) -> None:
    """Gathered rows stood in float32 beside the projection in int8, and nothing said so."""
    assert {"FLOAT"} in _tables(tied_module).values()
    quantize(tied_module, tmp_path / "q.bundle", "int8")
    types = _tables(tmp_path / "q.bundle")
    assert types
    assert all(each == {"INT8"} for each in types.values()), types


def test_what_is_kept_is_kept_in_all_graphs_by_any_name(tied_module: Path) -> None:
    graphs = read_manifest(tied_module).graphs
    models = {role: ir.load(tied_module / file) for role, file in graphs.items()}
    (uses,) = find_weight_uses([models["decoder"]])
    name, key = uses[0].role.parameter, uses[0].key
    for graph in models["generate"].graphs():  # there it has another name
        for value in graph.initializers.values():
            role = read_role(value)
            if role is not None and role.parameter == name:
                write_role(value, Role("another", role.kind))
    quantize_graphs([*models.values()], "int8", keep=[name])
    uses_left = dict(zip(models, find_weight_uses([*models.values()]), strict=True))
    keys = {role: {use.key for use in uses} for role, uses in uses_left.items()}
    assert keys["decoder"] == keys["generate"] == {key}
    assert all(each <= {key} for each in keys.values())
