"""The line by which two people see whether their figures were made with the same."""

import hashlib
import json
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.support.command import invoke
from tests.support.paths import REPOSITORY, VERSION_1
from tfexport import __version__
from tfexport.runtime.benchmark import Signature, of_artifact
from tfexport.runtime.parallel import cpu


def fields(line: str) -> dict[str, str]:
    return dict(part.split(":", 1) for part in line.removeprefix("signature: ").split("|"))


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


@pytest.fixture(name="texts")
def _texts(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").write_text("w5 w6\nw7\n", encoding="utf-8")
    return tmp_path / "a.txt"


def test_bench_names_each_layout_and_the_options(texts: Path, tiny_bundle: Path) -> None:
    call = ["bench", tiny_bundle, texts, "--runs", 1, "--batch-size", 1, "--batch-size", 2,
            "--threads", 1, "--threads", 2, "--beam-size", 2]  # fmt: skip
    lines = [line for line in invoke(*call).stdout.splitlines() if line.startswith("signature: ")]
    wanted = {
        "bundle": digest(tiny_bundle / "manifest.json"),
        "tfexport": __version__,
        "onnxruntime": version("onnxruntime"),
        "engine": "onnxruntime",
        "cpu": cpu.instruction_set(),
        "beam_size": "2",
        "batch_size": "1,2",
    }
    assert [fields(line) for line in lines] == [{**wanted, "threads": n} for n in ("1", "2")]
    timings = json.loads(invoke(*call, "--json").stdout)["timings"]
    assert [fields(timing["signature"]) for timing in timings] == [
        {**wanted, "threads": n, "batch_size": size} for n in ("1", "2") for size in ("1", "2")
    ]


def test_score_signs_its_lines_and_its_sum(texts: Path, tiny_bundle: Path) -> None:
    call = ["score", tiny_bundle, texts, texts, "--threads", 1, "--length-penalty", 0.5]
    done = invoke(*call)
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("signature: ")]
    assert fields(line)["length_penalty"] == "0.5"
    assert "ids" not in fields(line)
    together = json.loads(invoke(*call, "--json").stdout)
    assert together.pop("signature") == line.removeprefix("signature: ")
    scores = [float(score) for score in done.stdout.splitlines()]
    mean = pytest.approx(sum(scores) / 2, abs=1e-6)
    assert together == {"pairs": 2, "scored": 2, "mean_score": mean}


def test_score_writes_lines_into_a_file_beside_its_sum(texts: Path, tiny_bundle: Path) -> None:
    texts.write_text("w5 w6\nunheard-of w\n\udcff", encoding="utf-8", errors="surrogateescape")
    call = [
        "score",
        tiny_bundle,
        texts,
        texts,
        "--threads",
        1,
        "-o",
        texts.with_name("b"),
        "--json",
    ]
    done = invoke(*call)
    assert done.exit_code == 1
    together = json.loads(done.stdout)
    assert (together["pairs"], together["scored"]) == (3, 2)
    assert len(texts.with_name("b").read_text().splitlines()) == 3


@pytest.mark.usefixtures("few_shapes")
def test_verify_signs_table_json_and_page(
    tmp_path: Path, tiny_bundle: Path, tiny_checkpoint: Path
) -> None:
    page = tmp_path / "page.html"
    call = ["verify", tiny_bundle, "--checkpoint", tiny_checkpoint, "--set=num_heads=2"]
    line = invoke(*call, "--report", page).stdout.splitlines()[-1]
    assert fields(line)["bundle"] == digest(tiny_bundle / "manifest.json")
    assert fields(line)["torch"] == version("torch").partition("+")[0]
    assert fields(line)["threads"] == "1"
    signature = json.loads(invoke(*call, "--json").stdout)["signature"]
    assert line == f"signature: {signature}"
    assert signature in page.read_text(encoding="utf-8")


@pytest.mark.usefixtures("few_shapes")
def test_what_torch_computed_is_signed_so(tmp_path: Path, tiny_checkpoint: Path) -> None:
    of_torch = tmp_path / "model.ts"
    read = ["--checkpoint", tiny_checkpoint, "--set=num_heads=2"]
    ids = ["--set=pad_id=1", "--set=bos_id=2", "--set=eos_id=3"]
    invoke("torchscript", *read, *ids, "-o", of_torch, "--no-verify")
    line = invoke("verify", of_torch, *read).stdout.splitlines()[-1]
    assert (fields(line)["engine"], fields(line)["threads"]) == ("torch", "1")


def test_a_score_of_ids_is_another_figure(texts: Path, tiny_bundle: Path) -> None:
    texts.write_text("5 6\n7\n", encoding="utf-8")
    done = invoke("score", tiny_bundle, texts, texts, "--ids", "--json")
    assert fields(json.loads(done.stdout)["signature"])["ids"] == "true"


def test_a_file_is_named_by_its_own_digest(tmp_path: Path) -> None:
    (tmp_path / "a.onnx").write_bytes(b"graph")
    assert of_artifact(tmp_path / "a.onnx").artifact == f"file:{digest(tmp_path / 'a.onnx')}"


def test_engine_and_instruction_set_of_another_engine_are_said() -> None:
    signed = Signature("bundle:0", engine="native", instruction_set="avx512", threads=1)
    assert fields(str(signed))["engine"] == "native"
    assert fields(str(signed))["cpu"] == "avx512"


def test_no_option_breaks_the_line() -> None:
    options = {"suppress_sequences": ["a|b\nc:d"], "first_token": "|"}
    line = str(Signature("bundle:0", threads=1, options=options))
    assert "\n" not in line
    assert fields(line)["suppress_sequences"] == '["a%7Cb\\nc:d"]'


def test_all_threads_are_counted_for_each_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfexport.runtime.benchmark.usable_cores", lambda: 8)
    signed = of_artifact(VERSION_1, threads=0, workers=4)
    assert (signed.threads, signed.workers) == (2, 4)


@pytest.mark.parametrize(
    ("cpuinfo", "wanted"),
    [
        ("processor : 0\nflags\t\t: fpu avx2 amx_int8 avx512f avx\n", "avx+avx2+avx512f+amx_int8"),
        ("Features\t: fp asimd asimddp sve i8mm\n", "asimd+asimddp+i8mm+sve"),
    ],
)
def test_instruction_sets_are_read_from_linux(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpuinfo: str, wanted: str
) -> None:
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    monkeypatch.setattr(cpu, "CPUINFO", tmp_path / "cpuinfo")
    assert cpu.instruction_set() == wanted


def test_without_linux_the_architecture_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "CPUINFO", tmp_path / "none")
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    assert cpu.instruction_set() == "arm64"


def test_the_docs_show_the_fields_in_their_order() -> None:
    text = (REPOSITORY / "docs" / "commands.md").read_text(encoding="utf-8")
    (shown,) = [line for line in text.splitlines() if line.startswith("signature: ")]
    made = Signature("bundle:51dcf27445a7", threads=2, options={"beam_size": 4})
    assert list(fields(shown)) == list(made.to_dict())
