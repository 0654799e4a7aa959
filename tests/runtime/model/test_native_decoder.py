"""A recognised decoder in the native engine, over states that onnxruntime computes."""

import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import Once, compare_few_shapes, leave_out_beam_graph
from tests.export.incremental.own_case import draw_inputs, greedy
from tests.export.recognition.styles import Style
from tests.export.recognition.test_recognition import LONGEST, arguments, named
from tests.runtime.model.test_native_model import change_table
from tfexport.errors import BundleError, ConfigError, InputError
from tfexport.export import export, verify
from tfexport.runtime import Translator
from tfexport.runtime.engine import Engine
from tfexport.runtime.model.native_engine import instruction_set, pack_weights
from tfexport.runtime.parallel.cpu import ThreadLayout
from tfexport.runtime.scheduler import Scheduler, SchedulerLimits

pytest.importorskip("tfexport_native", reason="tfexport-native is not installed")
pytestmark = pytest.mark.slow

STYLE = named("speech")
Row = dict[str, np.ndarray[Any, Any]]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"beam_size": 4, "num_hypotheses": 3},
    {"beam_size": 3, "no_repeat_ngram_size": 2, "return_token_scores": True},
    {"sampling": True, "seed": 5, "num_hypotheses": 2},
    {"return_alternatives": True, "num_hypotheses": 3},
    {"suppress_tokens": [3, 7], "min_length": 4},
]


@pytest.fixture(scope="module")
def bundle(once: Once) -> Path:
    return bundle_of(STYLE, once)


def bundle_of(style: Style, once: Once) -> Path:
    """Without the graph of beams: the oracle's are searched for step by step."""

    def write(path: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            leave_out_beam_graph(patch)
            compare_few_shapes(patch)
            export(style.build(), path, **arguments(style), pad_id=style.pad_id,
                   bos_id=style.bos_id, eos_id=style.eos_id, max_length=LONGEST,
                   verify="quick")  # fmt: skip

    return once(f"{style.name}.bundle", write)


def rows_of(sizes: Sequence[int], seed: int = 0) -> list[Row]:
    draw = np.random.default_rng(seed)
    return [{"frames": draw.standard_normal((n, 10)).astype(np.float32)} for n in sizes]


@pytest.mark.parametrize("keywords", OPTIONS, ids=str)
def test_results_are_those_of_the_found_steps(bundle: Path, keywords: dict[str, Any]) -> None:
    rows = rows_of([1, 9, 9, 4, 40, 9, 1])
    theirs, ours = (
        Translator(bundle, threads=2, engine=engine).generate_from(rows, **keywords)
        for engine in ("onnxruntime", "native")
    )
    for one, two in zip(theirs, ours, strict=True):
        for expected, found in zip(one.hypotheses, two.hypotheses, strict=True):
            assert found.tokens == expected.tokens
            assert found.score == pytest.approx(expected.score, abs=1e-4)


def test_tokens_are_those_of_the_users_own_loop(bundle: Path) -> None:
    with Translator(bundle) as translator:
        assert translator.engine.model.engine == f"native {instruction_set()}"
        for size in (1, 7, 33):
            inputs = draw_inputs(STYLE.case, 4, {"source_length": size}, size)
            wanted = greedy(STYLE.case, STYLE.build(), inputs, LONGEST, banned=[STYLE.pad_id])
            rows = [{"frames": row} for row in inputs[0].numpy()]
            made = translator.generate_from(rows, suppress_tokens=[STYLE.pad_id])
            for row, result in zip(wanted.tolist(), made, strict=True):
                ended = row[: row.index(STYLE.eos_id)] if STYLE.eos_id in row else row
                assert list(result.hypotheses[0].tokens) == ended


@pytest.mark.parametrize("keywords", [{}, {"beam_size": 3}, {"sampling": True, "seed": 2}], ids=str)
def test_rows_of_any_size_enter_a_running_batch(bundle: Path, keywords: dict[str, Any]) -> None:
    engine = Engine(bundle, ThreadLayout(threads=1), engine="native")
    rows = rows_of([5, 30, 1, 5, 12, 30, 2, 2, 9], seed=1)
    options, (prefix,) = engine.resolver.resolve(keywords, [None])
    scheduler = Scheduler(engine, SchedulerLimits(slots=6))
    try:
        assert scheduler.continuous, scheduler.reason
        submitted = [
            scheduler.submit([engine.request_from(row, i, prefix, options)], options)
            for i, row in enumerate(rows)
        ]
        found = [each.future.result(60)[0] for each in submitted]
    finally:
        scheduler.close()
    alone = Translator(bundle, engine="native").generate_from(rows, **keywords)
    for one, two in zip(found, alone, strict=True):
        tokens = [each.tokens for each in getattr(one, "hypotheses", one)]
        assert tokens == [each.tokens for each in two.hypotheses]


def test_a_row_that_the_encoder_refuses_costs_no_other(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(bundle, ThreadLayout(threads=1), engine="native")
    sources = engine.model.sources  # type: ignore[attr-defined]

    def refuse(rows: Sequence[Row]) -> Any:
        if any(len(row["frames"]) == 12 for row in rows):
            raise BundleError("too long")
        return sources(rows)

    monkeypatch.setattr(engine.model, "sources", refuse)
    options, (prefix,) = engine.resolver.resolve({}, [None])
    rows = rows_of([5, 12, 30, 12, 7], seed=1)
    scheduler = Scheduler(engine, SchedulerLimits(slots=8))
    try:
        submitted = [
            scheduler.submit([engine.request_from(row, i, prefix, options)], options)
            for i, row in enumerate(rows)
        ]
        for row, each in zip(rows, submitted, strict=True):
            if len(row["frames"]) == 12:
                with pytest.raises(BundleError, match="too long"):
                    each.future.result(60)
            else:
                assert each.future.result(60)
    finally:
        scheduler.close()


def test_masked_positions_are_left_out(once: Once) -> None:
    style = named("parallel")
    path, pad = bundle_of(style, once), style.pad_id
    # Of any length, with padding at the end and in between.
    rows = [[5], [7, 9, 4], [7, 9, 4, pad, pad], [8, pad, 6, 11, pad], list(range(3, 40))]
    for beam_size in (1, 3):
        theirs, ours = (
            Translator(path, engine=engine).generate(rows, beam_size=beam_size)
            for engine in ("onnxruntime", "native")
        )
        for one, two in zip(theirs, ours, strict=True):
            assert two.hypotheses[0].tokens == one.hypotheses[0].tokens
            assert two.hypotheses[0].score == pytest.approx(one.hypotheses[0].score, abs=1e-4)
        assert ours[1].hypotheses[0].score == ours[2].hypotheses[0].score
    with pytest.raises(InputError, match="masks all positions"):
        Translator(path, engine="native").generate([[5], [pad, pad]])


def test_threads_may_share_it(bundle: Path) -> None:
    translator, rows = Translator(bundle, engine="native"), rows_of([3, 8, 21])
    wanted = [result.hypotheses for result in translator.generate_from(rows)]
    found: dict[int, Any] = {}

    def run(number: int) -> None:
        found[number] = [result.hypotheses for result in translator.generate_from(rows)]

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[number] for number in range(4)] == [wanted] * 4
    translator.close()
    assert [result.hypotheses for result in translator.generate_from(rows)] == wanted


def test_weights_can_be_packed(bundle: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(bundle, tmp_path / "copy.bundle"))
    rows = rows_of([4, 6])
    wanted = [result.hypotheses for result in Translator(copy).generate_from(rows)]
    assert pack_weights(copy).exists()
    assert [result.hypotheses for result in Translator(copy).generate_from(rows)] == wanted


@pytest.mark.usefixtures("no_beam_graph")
def test_verify_compares_the_engine_too(bundle: Path) -> None:
    called = {**arguments(STYLE), "level": "quick"}
    report = verify(bundle, STYLE.build(), **called)
    assert report.passed
    assert report.compared_native
    assert {"native", "native tokens", "decoder of states"} <= set(report.stages())


def test_attention_is_not_in_the_bundle_for_either_engine(bundle: Path) -> None:
    for engine in ("native", "onnxruntime"):
        with pytest.raises(ConfigError, match="attention is not in this bundle"):
            Translator(bundle, engine=engine).generate_from(rows_of([3]), return_attention=True)


def test_weights_of_another_shape_are_refused(bundle: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(bundle, tmp_path / "copy.bundle"))
    name = "decoder.layers.0.cross_attn.k_proj.weight"

    def narrow(table: dict[str, Any]) -> None:
        table[name]["shape"][1] -= 1

    change_table(copy, narrow)
    with pytest.raises(BundleError, match=r"cross_attn\.k_proj\.weight"):
        Translator(copy, engine="native")
