"""How benchmarks choose each system's best configuration, and say who is ahead."""

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.bench_plot import main as bench_plot
from benchmarks.choice import (
    best,
    best_peer,
    finalists,
    geometric_mean,
    may_win,
    one_thread_ratio,
    ratio,
    runs_for,
    seconds_of,
)
from benchmarks.compare import LENGTH, SOURCE, Bench, searches_of
from benchmarks.configurations import (
    CTRANSLATE2,
    DEFAULT,
    INSTRUCTION_SETS,
    NATIVE_SET,
    Size,
    configurations_of,
    is_peer,
)
from benchmarks.models import SIZES
from benchmarks.roofline import Machine, work_of
from benchmarks.systems import SYSTEMS
from benchmarks.tables import all_configurations, bounds, memory, peaks, report, speeds, summary
from benchmarks.word_errors import word_errors
from tests.support.paths import REPOSITORY

CONSTRAINTS = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8")


def figures(seconds: float, runs: int = 3, cores: int = 1) -> dict[str, Any]:
    return {
        "cores": cores, "least_when_choosing": seconds / 2, "seconds": seconds,
        "runs": [seconds] * runs, "tokens_per_second": 30 / seconds, "peak_mb": 100.0,
        "agreement": 1.0, "of_bandwidth": 0.5, "of_matrix_peak": 0.25,
        "of_bound": 0.6, "machine": {"bandwidth": 20e9, "float32": 300e9, "int8": 2e12},
    }  # fmt: skip


def result(seconds: dict[str, dict[str, float]], weights: str = "float32") -> dict[str, Any]:
    """A cell of the systems' configurations' medians."""
    systems = {}
    for name, configurations in seconds.items():
        found = {
            key: figures(value, cores=2 if "2" in key else 1)
            for key, value in configurations.items()
        }
        systems[name] = {"best": best(found), "configurations": found}
    return {"size": "small", "batch": 1, "beam": 1, "weights": weights, "length": 30,
            "systems": systems}  # fmt: skip


# CTranslate2 with two threads would make tfexport look ten times as fast; it is behind.
STALLED = result({
    "tfexport": {"1 thread": 0.3, "2 threads": 0.2},
    "CTranslate2": {"MKL, 2 threads": 2.0, "MKL, 1 thread": 0.1},
    "TorchScript": {"1 thread": 0.05},
})  # fmt: skip


def test_the_best_configuration_has_the_smallest_median_of_the_final() -> None:
    only_chosen = {"cores": 1, "least_when_choosing": 0.01}
    found = {"a": figures(0.3), "b": figures(0.2), "not in the final": only_chosen}
    assert best(found) == "b"


def test_the_fastest_goes_to_the_final_and_the_next_if_it_is_near() -> None:
    assert finalists({"a": 1.0, "b": 0.5, "c": 0.55}) == ["b", "c"]
    assert finalists({"a": 1.0, "b": 0.5, "c": 0.6}) == ["b"]
    assert finalists({"a": 0.5, "b": 0.5, "c": 0.5}) == ["a", "b"]
    assert finalists({"a": 1.0}) == ["a"]


def test_what_is_far_behind_or_slow_is_not_run_again_to_choose() -> None:
    assert may_win([1.5], fastest=1.0)
    assert may_win([9.0, 1.5], fastest=1.0)
    assert not may_win([1.7], fastest=1.0)
    assert may_win([4.0], fastest=4.0)
    assert not may_win([4.0, 4.0], fastest=4.0)


def test_brief_runs_are_repeated_whatever_the_first_ones_took() -> None:
    # One core was taken away while two threads ran; see docs/performance.md.
    assert may_win([0.101], fastest=0.037)
    assert may_win([0.101, 0.04], fastest=0.037)
    assert not may_win([0.101, 0.04, 0.04], fastest=0.037)
    assert runs_for(0.05, 3) == 7


def test_slow_configurations_run_fewer_times_but_not_once() -> None:
    assert runs_for(0.01, 7) == 7
    assert runs_for(2.0, 7) == 4
    assert runs_for(60.0, 7) == 3
    assert runs_for(60.0, 2) == 2


def test_ratios_are_of_best_against_best() -> None:
    assert seconds_of(STALLED, "tfexport") == 0.2
    assert ratio(STALLED, "CTranslate2") == pytest.approx(0.5)  # behind
    assert ratio(STALLED, "Transformers") is None
    assert ratio(STALLED, None) is None


def test_one_thread_is_held_against_one_thread() -> None:
    assert one_thread_ratio(STALLED, "CTranslate2") == pytest.approx(0.1 / 0.3)
    assert one_thread_ratio(STALLED, "Transformers") is None
    two = result({"tfexport": {"2 threads": 0.2}, "CTranslate2": {"MKL": 0.1}})
    assert one_thread_ratio(two, "CTranslate2") is None
    assert "1 thread each" in speeds([STALLED])


def test_the_fastest_peer_is_not_one_of_our_own_exports() -> None:
    assert best_peer(STALLED) == "CTranslate2"
    assert best_peer(result({"tfexport": {"1 thread": 0.2}})) is None
    with_compile = result({"torch.compile": {"frozen": 0.1}, "CTranslate2": {"MKL": 0.2}})
    assert best_peer(with_compile) == "torch.compile"
    assert not is_peer("tfexport, scores")


def test_int8_is_held_against_int8() -> None:
    cell = result({"tfexport int8": {"a": 0.1}, "CTranslate2 int8": {"b": 0.2}}, "int8")
    assert ratio(cell, best_peer(cell)) == pytest.approx(2.0)


def test_the_mean_of_ratios_is_geometric() -> None:
    assert geometric_mean([0.5, 2.0, None]) == pytest.approx(1.0)
    assert geometric_mean([None]) is None


def test_every_system_has_configurations_with_names_of_their_own() -> None:
    assert set(DEFAULT) <= set(SYSTEMS)
    for system in SYSTEMS:
        names = [configuration.name for configuration in configurations_of(system)]
        assert len(set(names)) == len(names) > 1
        assert {configuration.cores for configuration in configurations_of(system)} == {1, 2}


@pytest.mark.parametrize("system", CTRANSLATE2.values())
def test_ctranslate2_is_measured_with_each_back_end_at_one_and_two_threads(system: str) -> None:
    ways = {
        (way.environment["CT2_USE_MKL"], way.threads, way.workers)
        for way in configurations_of(system)
    }
    assert ways == {(mkl, *cores) for mkl in "01" for cores in ((1, 1), (2, 1), (1, 2))}


def test_the_tables_name_the_configuration_that_won() -> None:
    table = speeds([STALLED])
    assert "| **tfexport** | 150 (2 threads) |" in table
    assert "| CTranslate2 | 300 (MKL, 1 thread) |" in table
    assert "| tfexport ÷ CTranslate2 (geometric mean 0.50) | 0.50 |" in table
    assert "the fastest peer" not in table  # it is CTranslate2
    assert "MKL, 1 thread" in report(STALLED)
    assert "| MKL, 1 thread | **600** |" in all_configurations([STALLED], "CTranslate2")
    assert "| CTranslate2 int8 | – |" in memory([STALLED])


def test_the_bound_takes_the_slower_of_memory_and_units_for_each_part() -> None:
    # d 2, one layer of 4 columns, 10 words: of encoder and decoder 40 weights each, of words 20.
    size, machine = Size(2, 1, 4, 10), Machine(bandwidth=160, float32=400, int8=800)
    work = work_of(size, 1, source=100, target=3, weights="float32")
    assert [part.bytes for part in work.parts] == [160, 3 * 160, 3 * 80]
    assert [part.float32 for part in work.parts] == [100 * 80, 3 * 80, 3 * 40]
    assert work.working_set == 4 * (40 + 20)
    # The encoder waits for its products (20 s), the decoder for memory (3 and 1.5).
    assert work.seconds(machine) == pytest.approx(24.5)
    assert work.seconds_of_products(machine) == pytest.approx(20.9)
    screened = work_of(size, 8, source=100, target=3, weights="preselected", beams=1)
    assert (screened.parts[2].bytes, screened.parts[2].int8) == (60, 8 * 3 * 40)
    # Two bytes for each weight of the words; of four products of digits one is left out.
    ranked = work_of(size, 8, source=100, target=3, weights="ranked", beams=4)
    assert (ranked.parts[2].bytes, ranked.parts[2].int8) == (2 * 60, 3 * 32 * 3 * 40)
    assert (ranked.parts[2].float32, ranked.working_set) == (0, 4 * 40 + 2 * 20)
    assert "2 threads: memory and caches 20 to 20 GB/s" in peaks([STALLED])
    assert "| CTranslate2 | 50%, 25%, 60% |" in bounds([STALLED])


def test_the_readme_has_a_row_for_each_search_and_engine() -> None:
    cells = [
        {
            **result({"tfexport": {"native, 1 thread": 0.1, "onnxruntime, 2 threads": 0.4},
                      "CTranslate2": {"MKL, 1 thread": seconds}}),
            "beam": 4, "batch": batch,
        }
        for batch, seconds in ((1, 0.2), (16, 0.8))
    ]  # fmt: skip
    table = summary([STALLED, *cells]).splitlines()
    assert table[0] == "| tfexport ÷ CTranslate2 | batch 1 | 16 | mean |"
    assert "| small, greedy, float32 | 0.50 | – | 0.50 |" in table
    assert "| small, beams of 4, float32 | 2.00 | 8.00 | 4.00 |" in table
    assert "| small, beams of 4, float32, onnxruntime alone | 0.50 | 2.00 | 1.00 |" in table


def test_the_folders_own_beams_are_measured_first() -> None:
    batches = (1, 8, 16, 32)
    assert searches_of("opus", (), ()) == [(4, batches), (6, batches), (1, (1, 8, 32))]
    assert searches_of("small", (), ()) == [(1, (1, 8, 32)), (4, (8,))]
    assert searches_of("small", (1, 2), (4, 4)) == [(1, (4,)), (2, (4,))]


def test_the_tables_name_the_fastest_peer_where_it_is_another() -> None:
    cell = result({"tfexport": {"a": 0.2}, "CTranslate2": {"b": 0.4}, "torch.compile": {"c": 0.3}})
    lines = speeds([cell])
    assert "| tfexport ÷ CTranslate2 (geometric mean 2.00) | 2.00 |" in lines
    assert "the fastest peer (geometric mean 1.50) | 1.50 (torch.compile) |" in lines


def test_the_tables_say_where_tokens_are_not_those_of_float32() -> None:
    cell = result({"tfexport int8": {"a": 0.1}, "CTranslate2 int8": {"b": 0.2}}, "int8")
    cell["systems"]["CTranslate2 int8"]["configurations"]["b"]["agreement"] = 0.21
    table = speeds([cell])
    assert "| CTranslate2 int8 | 150 (b; 21% same tokens) |" in table
    assert "| **tfexport int8** | 300 (a) |" in table


def test_the_picture_of_the_docs_is_that_of_its_figures(tmp_path: Path) -> None:
    images = REPOSITORY / "docs" / "images"
    drawn = tmp_path / "bench.svg"
    done = CliRunner().invoke(bench_plot, [str(images / "bench.json"), "-o", str(drawn)])
    assert done.exit_code == 0, done.output
    figures = json.loads((images / "bench.json").read_text())
    text = drawn.read_text(encoding="utf-8")
    for threads in {timing["threads"] for timing in figures["timings"]}:
        assert f"{threads} thread" in text
    if (
        f"matplotlib=={version('matplotlib')}\n" in CONSTRAINTS
    ):  # another release may draw another line
        assert text == (images / "bench.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
def test_an_instruction_set_limits_every_configuration(isa: str) -> None:
    """And leaves out onnxruntime, which would use others."""
    for system in SYSTEMS:
        for way in configurations_of(system, isa):
            assert way.environment.items() >= INSTRUCTION_SETS[isa].items()
            assert way.options.get("engine") != "onnxruntime"
    assert not configurations_of("generate.onnx", isa)
    assert [way.name for way in configurations_of("tfexport int8", isa)] == [
        "native, 1 thread", "native, 2 threads", "native, 2 workers"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("fastest", "asked", "isa", "ranked"),
    [("amx", None, None, True), ("avx2", None, None, False), ("amx", "avx512", None, False),
     ("amx", "amx", None, True), ("amx", "amx", "avx2", False)],
)  # fmt: skip
def test_the_bound_of_beams_is_of_the_set_that_runs(
    fastest: str, asked: str | None, isa: str | None, ranked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = pytest.importorskip("tfexport_native", reason="tfexport-native is not installed")
    monkeypatch.setattr(engine, "instruction_sets", lambda: [fastest])
    monkeypatch.delenv(NATIVE_SET, raising=False)
    if asked:
        monkeypatch.setenv(NATIVE_SET, asked)
    bench = Bench("opus", Path(), Path(), "float32", [], 4, 1, 1, isa)

    def bytes_of(system: str, name: str) -> float:
        return bench.work(system, name, 8).bytes

    plain = work_of(SIZES["opus"], 8, SOURCE, LENGTH, "float32", 4).bytes
    assert (bytes_of("tfexport", "native, 1 thread") < plain) == ranked
    assert bytes_of("CTranslate2", "oneDNN, 1 thread") == plain
    if not isa:  # in the same tables, on another engine
        assert bytes_of("tfexport", "onnxruntime, 1 thread") == plain


@pytest.mark.parametrize(
    ("text", "cut", "wanted"),
    [
        ("The cat sat.", "", (0, 3)), ("the Cat, sat on a", "on a mat", (0, 5)),
        ("the cat", "on a mat", (1, 3)), ("the bat sat on the", "on a mat", (2, 4)),
        ("", "on", (3, 3)), ("well the cat sat sat", "", (2, 3)),
    ],
)  # fmt: skip
def test_words_are_wrong_missing_or_too_many(text: str, cut: str, wanted: tuple[int, int]) -> None:
    assert word_errors(text, ["The cat", "sat."], cut) == wanted
