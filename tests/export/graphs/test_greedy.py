"""The greedy loop in one file, run with onnxruntime alone."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch
from numpy.typing import NDArray

from tests.conftest import CONFIG, SETTINGS, Once
from tests.export.artifacts.test_originals import FAMILIES, LIMIT, ROWS, greedy
from tests.support import tutorial
from tests.support.combinations import few_of
from tests.support.node import in_node
from tfexport.export import export
from tfexport.runtime import Translator

Array = NDArray[Any]


@pytest.fixture
def path(tiny_graph: Path) -> Path:
    return tiny_graph


def run(path: Path, **changes: Any) -> tuple[Array, Array]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(path, options)
    feeds = {
        "input_ids": np.array([[5, 6, 7], [8, 0, 0]]),
        "attention_mask": np.array([[1, 1, 1], [1, 0, 0]]),
        "max_length": np.array(6),
        **changes,
    }
    sequences, scores = session.run(["sequences", "scores"], feeds)
    return sequences, scores


def pad(rows: list[list[int]]) -> dict[str, Array]:
    longest = max(map(len, rows))
    ids = np.array([row + [0] * (longest - len(row)) for row in rows])
    mask = np.array([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    return {"input_ids": ids, "attention_mask": mask}


def tokens(sequences: Array, limit: int) -> list[list[int]]:
    """Rows up to their end token; behind it there is only padding."""
    found = []
    for row in sequences.tolist():
        end = row.index(2) if 2 in row else len(row)
        assert set(row[end + 1 :]) <= {0}
        found.append(row[:end])
    return found


def test_one_call_equals_the_tutorials_loop(
    path: Path, tutorial_model: tutorial.TutorialModel, tiny_bundle: Path
) -> None:
    generator = random.Random(3)
    rows = [[generator.randrange(17) for _ in range(generator.randint(1, 9))] for _ in range(40)]
    expected = [tutorial.greedy(tutorial_model, row, 20, bos=1, eos=2) for row in rows]
    assert len({len(row) for row in expected}) > 3, "rows end at different steps"
    for batch in (rows, rows[:1], rows[7:9]):
        sequences, scores = run(path, **pad(batch), max_length=np.array(20))
        at = rows.index(batch[0])
        assert tokens(sequences, 20) == expected[at : at + len(batch)]
        results = Translator(tiny_bundle).generate(batch, max_length=20)
        assert scores == pytest.approx([r.hypotheses[0].score for r in results], abs=1e-5)


def test_a_bundles_graph_can_leave_scores_out(tiny_bundle: Path) -> None:
    path, rows = tiny_bundle / "generate.onnx", pad([[9, 2], [4, 5, 6, 7]])
    sequences, scores = run(path, **rows)
    same, none = run(path, **rows, return_scores=np.array(False))
    assert sequences.tolist() == same.tolist()
    assert np.isfinite(scores).all()
    assert np.isnan(none).all()
    assert run(path, **rows, return_scores=np.array(True))[1].tolist() == scores.tolist()
    names = [value.name for value in ort.InferenceSession(path).get_inputs()]
    assert names == ["input_ids", "attention_mask", "max_length"], "it need not be fed"


def test_it_stops_when_all_rows_have_ended(path: Path) -> None:
    sequences, _ = run(path, **pad([[9, 2]]), max_length=np.array(50))
    assert sequences.tolist() == [[2]]


def test_rows_that_have_ended_leave_the_batch(path: Path, tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    session = ort.InferenceSession(path, options)
    rows = [[9, 2], [4, 5, 6, 7], *([i, 8, 9] for i in range(3, 17))]
    sequences, _ = session.run(None, {**pad(rows), "max_length": np.array(20)})
    events = json.loads(Path(session.end_profiling()).read_text())
    products = [e for e in events if e["args"].get("op_name") == "MatMul" and "step/" in e["name"]]
    # Not those that choose the token, which have a row for each word that could be the best.
    products = [e for e in products if "best/" not in e["name"]]
    projections = [e for e in products if e["name"].endswith("_kernel_time")]
    last = projections[-1]["args"]["node_index"]  # of the last layer
    sizes = [
        next(iter(e["args"]["input_type_shape"][0].values()))[0]
        for e in projections
        if e["args"]["node_index"] == last
    ]
    lengths = sorted((len(row) + 1 for row in tokens(sequences, 20)), reverse=True)
    lengths = [min(length, sequences.shape[1]) for length in lengths]
    assert len(set(lengths)) > 3, "rows end at different steps"
    assert len(sizes) == lengths[0]
    for step, size in enumerate(sizes):
        going_on = sum(length > step for length in lengths)
        assert going_on <= size, "nobody leaves early"
        assert going_on > 3 * size // 4 or size == 1, "and few stay on"


def export_family(family: str, once: Once) -> Path:
    """The family's random model as one portable file."""
    model, _, given, _ = FAMILIES[family]
    words = [word.removeprefix("--set=") for word in given]
    ids = [f"{key}={value}" for key, value in SETTINGS.items()]

    def make(path: Path) -> None:
        state = path.with_suffix(".pt")
        torch.save(model.state_dict(), state)
        settings = [*words, *ids]
        export(state, path, graph="generate", settings=settings, portable=True, verify=False)

    return once(f"families/{family}.onnx", make)


@pytest.mark.slow
@pytest.mark.parametrize("where", few_of(["Python", "Node"], "Python"))
@pytest.mark.parametrize("family", few_of(FAMILIES, "annotated-res_post"))
def test_every_family_decodes_in_one_portable_call(family: str, where: str, once: Once) -> None:
    """The fused graph of each is in its bundle, which test_originals decodes with."""
    path = export_family(family, once)
    expected = [greedy(FAMILIES[family][1], row) for row in ROWS]
    assert len({len(row) for row in expected}) > 1, "rows end at different steps"
    for first, last in ((0, len(ROWS)), (0, 1)):
        feeds = {**pad(ROWS[first:last]), "max_length": np.array(LIMIT)}
        sequences = run(path, **feeds)[0] if where == "Python" else np.array(in_node(path, feeds))
        assert tokens(sequences, LIMIT) == expected[first:last]


def test_edges_have_a_defined_answer(path: Path) -> None:
    for none in (0, -5):
        sequences, scores = run(path, max_length=np.array(none))
        assert sequences.shape == (2, 0)
        assert scores.tolist() == [0, 0]
    longest, _ = run(path, max_length=np.array(10**9))
    assert longest.shape[1] <= 64, "the position table bounds it"
    sequences, scores = run(path, attention_mask=np.array([[1, 1, 1], [0, 0, 0]]))
    assert set(sequences[1].tolist()) == {0}, "a row that is all padding says nothing"
    assert scores[1] == 0
    assert np.isfinite(scores).all()
    alone, _ = run(path, **pad([[5, 6, 7]]))
    assert sequences[0, : alone.shape[1]].tolist() == alone[0].tolist()
    empty, _ = run(path, input_ids=np.zeros((0, 3), np.int64), attention_mask=np.ones((0, 3), int))
    assert empty.shape[0] == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"input_ids": np.array([[5, -1, 7], [8, 0, 0]])},
        {"input_ids": np.array([[5, 17, 7], [8, 0, 0]])},
        {"input_ids": np.array([[5, 6, 7], [8, 0, 0]], np.int32)},
        {"input_ids": np.array([5, 6, 7])},
        {"attention_mask": np.ones((2, 1), np.int64)},
        {"attention_mask": np.ones((1, 3), np.int64)},
        {"input_ids": np.ones((2, 0), np.int64), "attention_mask": np.ones((1, 0), np.int64)},
        {"input_ids": np.ones((0, 3), np.int64), "attention_mask": np.ones((0, 1), np.int64)},
        {"attention_mask": np.ones((2, 3), np.float32)},
        {"input_ids": np.full((1, 65), 5), "attention_mask": np.ones((1, 65), np.int64)},
    ],
    ids=[
        "negative",
        "beyond",
        "int32",
        "rank 1",
        "mask column",
        "mask row",
        "empty rows",
        "no rows",
        "float mask",
        "long",
    ],
)
def test_bad_input_is_an_error_and_not_tokens(path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(Exception, match="ONNXRuntimeError"):
        run(path, **changes)


@pytest.mark.parametrize("graph", ["encoder", "decoder"])
def test_bad_ids_are_errors_in_a_bundles_graphs_too(tiny_bundle: Path, graph: str) -> None:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(tiny_bundle / f"{graph}.onnx", options)
    sizes = {"batch": 2, "source_length": 3, "target_length": 1, "past_length": 0}
    feeds = {
        value.name: np.ones(
            [sizes.get(axis, axis) for axis in value.shape],
            np.int64 if "int64" in value.type else np.float32,
        )
        for value in session.get_inputs()
    }
    session.run(None, feeds)
    for wrong in (-1, 19):
        with pytest.raises(Exception, match="out of data bounds"):
            session.run(None, {**feeds, "input_ids": feeds["input_ids"] * wrong})
    mask = "attention_mask" if graph == "encoder" else "encoder_attention_mask"
    for shape in ((2, 1), (1, 3), (2, 0)):
        with pytest.raises(Exception, match="ONNXRuntimeError"):
            session.run(None, {**feeds, mask: np.ones(shape, np.int64)})


@pytest.mark.slow
@pytest.mark.usefixtures("few_shapes")
@pytest.mark.parametrize("portable", few_of([False, True], False), ids=["fused", "portable"])
def test_attention_is_that_of_torchs_own_modules(
    tmp_path: Path, tutorial_model: tutorial.TutorialModel, portable: bool
) -> None:
    path = tmp_path / "g.onnx"
    result = export(
        tutorial_model,
        path,
        graph="generate",
        config=CONFIG,
        output_attentions=True,
        portable=portable,
    )
    assert result.report is not None
    assert "attention" in {c.stage for c in result.report.comparisons}
    feeds = {**pad([[5, 6, 7], [8]]), "max_length": np.array(6)}
    sequences, _, attention = ort.InferenceSession(path).run(None, feeds)
    assert attention.shape == (2, 1, 2, sequences.shape[1], 3)

    seen: list[Array] = []
    layer = tutorial_model.transformer.decoder.layers[0].multihead_attn
    asked = layer.register_forward_pre_hook(
        lambda module, args, kwargs: (
            args,
            {**kwargs, "need_weights": True, "average_attn_weights": False},
        ),
        with_kwargs=True,
    )
    kept = layer.register_forward_hook(lambda module, args, out: seen.append(out[1].numpy()))
    for i, length in enumerate((3, 1)):
        row = sequences[i].tolist()
        count = row.index(2) + 1 if 2 in row else len(row)
        source = torch.from_numpy(feeds["input_ids"][i : i + 1, :length]).T
        tutorial_model(source, torch.tensor([[1, *row[: count - 1]]]).T)
        ours = attention[i, 0, :, :count]
        np.testing.assert_allclose(ours[..., :length], seen.pop()[0], atol=1e-5)
        assert not ours[..., length:].any(), "padding is not looked at"
    asked.remove()
    kept.remove()
