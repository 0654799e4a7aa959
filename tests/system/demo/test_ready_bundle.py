"""examples/de-en.bundle, which ships so that a newcomer needs no torch: `make ready-bundle`."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import sacrebleu
import torch

from tests.conftest import Once
from tests.serve.servers import serving
from tests.support.paths import REPOSITORY
from tests.system.demo.conftest import FOLDER
from tests.system.demo.test_programs import needs_packages, run
from tfexport.bundle import open_bundle
from tfexport.export import export
from tfexport.runtime import Translator

READY = REPOSITORY / "examples" / "de-en.bundle"
LARGEST = 12_000_000
STALE = "examples/de-en.bundle is not what this version makes: make ready-bundle"
# What depends on the commit, on the machine, or is not made here.
OTHERS = ("tfexport_version", "parity", "digest", "quantization")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def fresh(once: Once, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same from the checkpoint; files are the same without comparison, and with few samples."""

    def make(path: Path) -> None:
        lines = (FOLDER / "test.tsv").read_text(encoding="utf-8").splitlines(keepends=True)
        samples = tmp_path_factory.mktemp("samples") / "some.tsv"
        samples.write_text("".join(lines[::8]), encoding="utf-8")
        export(FOLDER, path, quantize="int8", samples=samples, verify=False)

    return once("fresh-int8.bundle", make)


def manifest_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    return found


def test_it_is_whole_and_small() -> None:
    manifest = open_bundle(READY)  # which checks every digest
    held = {path.name for path in READY.iterdir()}
    assert held == {"manifest.json", *manifest.files}
    assert sum(path.stat().st_size for path in READY.iterdir()) <= LARGEST


def test_it_is_what_the_checkpoint_gives(fresh: Path, bundle: Path) -> None:
    ready, made = manifest_of(READY), manifest_of(fresh)
    assert ready.keys() == made.keys(), STALE
    parity = ready["parity"]
    assert parity["passed"]
    assert parity.keys() == manifest_of(bundle)["parity"].keys(), STALE
    if parity["torch"] != torch.__version__.partition("+")[0]:
        pytest.skip(f"graphs are compared with torch {parity['torch']}, which it was made with")
    for name in made.keys() - set(OTHERS):
        assert ready[name] == made[name], f"{name}: {STALE}"
    quantization, again = ready["quantization"], made["quantization"]
    assert quantization.keys() == again.keys(), STALE
    assert quantization["kept"] == again["kept"]
    for name in made["files"]:
        assert (READY / name).read_bytes() == (fresh / name).read_bytes(), f"{name}: {STALE}"


@pytest.mark.parametrize("engine", ["onnxruntime", "native"])
def test_it_translates_well(engine: Any, all_pairs: list[list[str]]) -> None:
    if engine == "native":
        pytest.importorskip("tfexport_native")
    with Translator(READY, engine=engine) as translator:
        results = translator.translate([pair[0] for pair in all_pairs])
    bleu = sacrebleu.corpus_bleu([str(r.text) for r in results], [[pair[1] for pair in all_pairs]])
    gate = manifest_of(READY)["quantization"]["gate"]
    assert bleu.score == pytest.approx(gate["bleu"], abs=0.5)  # the gate is of onnxruntime
    assert gate["bleu"] > 53.7  # float32: 54.0


def test_it_is_served_under_its_languages(tmp_path: Path) -> None:
    with serving(tmp_path, READY) as server:
        listed = server.ask("GET", "/languages")
    assert [(each["code"], each["targets"]) for each in listed.json if each["targets"]] == [
        ("de", ["en"])
    ]


def test_it_decodes_where_torch_is_not_installed(tmp_path: Path) -> None:
    command = REPOSITORY / ".venv-runtime" / ("Scripts" if os.name == "nt" else "bin") / "tfexport"
    if not command.exists():
        pytest.skip("needs .venv-runtime: make .venv-runtime/ready")
    done = subprocess.run(
        [command, "translate", READY], input=b"Wo ist der Bahnhof?\n", cwd=tmp_path,
        capture_output=True,
    )  # fmt: skip
    assert done.stdout == b"Where's the station?\n", done.stderr


def test_node_decodes_it() -> None:
    needs_packages("node")
    command: list[Any] = ["node", REPOSITORY / "examples" / "node" / "translate.mjs", READY]
    assert run(command, "Wo ist der Bahnhof?\n") == "Where's the station?\n"
