"""Bundles in the native engine, compared with onnxruntime and eager PyTorch."""

import json
import mmap
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support import tutorial
from tests.support.combinations import few_of
from tests.support.manifests import rewrite
from tests.support.tiny_rows import rows_of
from tfexport import bundle as bundle_file
from tfexport.bundle import WEIGHTS, read_manifest, write_manifest
from tfexport.errors import (
    BundleError,
    ConfigError,
    OutputExistsError,
    ParityError,
    TfexportWarning,
)
from tfexport.export import export, quantize, verify
from tfexport.export.artifacts.option_rules import Output
from tfexport.model_src import TransformerConfig, build_transformer, save_checkpoint
from tfexport.runtime import Translator
from tfexport.runtime.model import native_engine
from tfexport.runtime.model.native_engine import instruction_set, pack_new, pack_weights
from tfexport.weight_table import WEIGHT_TABLE, read_weight_table

HALVES = ("bfloat16", "float16")

pytest.importorskip("tfexport_native", reason="tfexport-native is not installed")


@pytest.fixture
def copy(tiny_bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_bundle, tmp_path / "copy.bundle"))


def change_table(bundle: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = bundle / WEIGHT_TABLE
    table = json.loads(path.read_text())
    change(table)
    path.write_text(json.dumps(table))
    write_manifest(bundle, read_manifest(bundle))


@pytest.mark.parametrize(
    "keywords",
    [
        {},
        {"beam_size": 4, "num_hypotheses": 3},
        {"beam_size": 3, "coverage_penalty": 0.2, "return_attention": True},
        {"sampling": True, "seed": 5, "num_hypotheses": 2},
        {"no_repeat_ngram_size": 2, "min_length": 3, "return_token_scores": True},
        {"return_alternatives": True, "num_hypotheses": 3},
    ],
    ids=str,
)
def test_results_are_those_of_onnxruntime(tiny_bundle: Path, keywords: dict[str, Any]) -> None:
    rows = rows_of(17)
    theirs, ours = (
        Translator(tiny_bundle, threads=2, engine=engine).generate(rows, **keywords)
        for engine in ("onnxruntime", "native")
    )
    for one, two in zip(theirs, ours, strict=True):
        for expected, found in zip(one.hypotheses, two.hypotheses, strict=True):
            assert found.tokens == expected.tokens
            assert found.score == pytest.approx(expected.score, abs=1e-4)
            if expected.attention is not None:
                assert np.allclose(found.attention, expected.attention, atol=1e-4)


def test_scores_of_given_targets(tiny_bundle: Path) -> None:
    rows = rows_of(9)
    targets = [[4 + i, 5, 6][: 1 + i % 3] for i in range(len(rows))]
    theirs, ours = (
        Translator(tiny_bundle, engine=engine).score(rows, targets)
        for engine in ("onnxruntime", "native")
    )
    for one, two in zip(theirs, ours, strict=True):
        assert two.score == pytest.approx(one.score, abs=1e-4)


def test_results_do_not_depend_on_the_batch(tiny_bundle: Path) -> None:
    translator = Translator(tiny_bundle, engine="native")
    rows = rows_of(23)
    together = translator.generate(rows, beam_size=2)
    for row, expected in zip(rows, together, strict=True):
        (alone,) = translator.generate([row], beam_size=2)
        assert alone.hypotheses[0].tokens == expected.hypotheses[0].tokens
        assert alone.hypotheses[0].score == expected.hypotheses[0].score, "to the last bit"


@pytest.mark.usefixtures("few_shapes")
def test_parity_compares_the_engine_too(copy: Path, tutorial_model: tutorial.TutorialModel) -> None:
    assert verify(copy, tutorial_model).passed

    def exchange(table: dict[str, Any]) -> None:
        one, two = (f"decoder.layers.0.self_attn.{part}_proj.weight" for part in "kv")
        table[one], table[two] = table[two], table[one]

    change_table(copy, exchange)
    report = verify(copy, tutorial_model)
    failure = report.first_failure()
    assert failure is not None
    assert failure.stage == "native"
    with pytest.raises(ParityError, match="native"):
        report.require("a bundle")


def test_packed_weights_give_the_same_results(copy: Path) -> None:
    rows = rows_of(5)
    before = Translator(copy, engine="native").generate(rows)
    path = pack_weights(copy)
    assert path == copy.with_name(f"copy.bundle.{instruction_set()}.packed")
    after = Translator(copy, engine="native").generate(rows)
    assert [r.to_dict() for r in after] == [r.to_dict() for r in before]
    assert pack_weights(copy) == path  # packed weights are replaced
    path.write_bytes(b"notes of somebody")
    with pytest.raises(OutputExistsError):
        pack_weights(copy)
    assert pack_weights(copy, force=True) == path


@pytest.mark.usefixtures("few_shapes", "no_search_graphs")
@pytest.mark.parametrize("dtype", few_of(HALVES, "bfloat16"))
def test_a_checkpoint_in_half_precision_is_packed_as_it_is(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = TransformerConfig(
        d_model=32, num_heads=4, num_encoder_layers=1, num_decoder_layers=2, d_ff=96,
        source_vocab_size=50, target_vocab_size=60, positions="learned", max_positions=40,
        pad_id=0, bos_id=1, eos_id=2,
    )  # fmt: skip
    torch.manual_seed(0)
    model = build_transformer(config).to(getattr(torch, dtype))
    save_checkpoint(model, tmp_path / "model.safetensors")
    bundle = tmp_path / "a.bundle"
    export(tmp_path / "model.safetensors", bundle)
    rows = rows_of(9)
    found, files = [], []
    for wanted in ("stored", "float32"):
        monkeypatch.setenv("TFEXPORT_NATIVE_WEIGHTS", wanted)
        translator = Translator(bundle, engine="native")
        found.append([r.to_dict() for r in translator.generate(rows, beam_size=3)])
        files.append(pack_weights(bundle, force=True))
    assert found[0] == found[1], "to the last bit"
    assert files[0] != files[1], "one is not mapped in place of the other"
    sizes = [file.stat().st_size for file in files]
    # The packed file has the same further parts: norms, biases, integers of the output projection.
    table = read_weight_table(bundle, (bundle / WEIGHTS).stat().st_size)
    matrices = sum(each.nbytes for name, each in table.items() if name.endswith("proj.weight"))
    of_output = table["output_proj.weight"].nbytes
    assert sizes[1] - sizes[0] > 0.4 * (matrices - 2 * of_output)


def test_a_stale_file_is_told_of_and_not_used(copy: Path) -> None:
    expected = Translator(copy, engine="native").generate([[4, 5]])
    path = pack_weights(copy)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.warns(TfexportWarning, match="tfexport optimize"):
        translator = Translator(copy, engine="native")
    assert translator.generate([[4, 5]])[0].to_dict() == expected[0].to_dict()


def beside(bundle: Path) -> set[str]:
    names = {path.name for path in bundle.parent.iterdir()} - {bundle.name}
    return {name.removeprefix(f"{bundle.name}.") for name in names}


def test_a_new_bundle_is_packed_and_its_weights_are_not_read_to_check_them(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rows_of(5)
    expected = Translator(copy, engine="native").generate(rows)
    pack_new(copy)
    assert beside(copy) == set(), "small bundles need nothing"
    size = (copy / WEIGHTS).stat().st_size
    monkeypatch.setattr("tfexport.bundle._LARGE", size - 1)
    monkeypatch.setattr("tfexport.bundle._ROUNDING", 0.05)
    pack_new(copy)
    assert beside(copy) == {f"{instruction_set()}.packed", "checked"}
    read, digest = list[str](), bundle_file._sha256

    def note(path: Path) -> str:
        read.append(path.name)
        return digest(path)

    monkeypatch.setattr(bundle_file, "_sha256", note)
    found = Translator(copy, engine="native").generate(rows)
    assert [r.to_dict() for r in found] == [r.to_dict() for r in expected]
    assert read
    assert WEIGHTS not in read


def test_a_new_bundle_that_cannot_be_packed_is_whole(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tfexport.bundle._LARGE", 0)
    monkeypatch.setattr("tfexport.bundle._ROUNDING", 0.05)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "tfexport_native", None)
        pack_new(copy)
    assert beside(copy) == {"checked"}, "the note, which onnxruntime gains by, too"
    copy.with_name(f"{copy.name}.{instruction_set()}.packed").mkdir()
    with pytest.warns(TfexportWarning, match="was written, but not all that lets it open fast: "):
        pack_new(copy)


def test_weights_that_change_while_they_are_packed_are_refused(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = native_engine._tensors

    def replaced(folder: Path, mapped: mmap.mmap) -> Any:
        found = tensors(folder, mapped)
        shutil.copy(copy / WEIGHTS, copy.parent / "other")
        (copy.parent / "other").replace(copy / WEIGHTS)
        return found

    monkeypatch.setattr(native_engine, "_tensors", replaced)
    with pytest.raises(BundleError, match="was replaced or changed"):
        pack_weights(copy)
    assert beside(copy) == set()


@pytest.mark.parametrize("made_by", ["export", "quantize"])
def test_exports_are_packed_unless_it_is_not_wanted(
    made_by: str, tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, packed = tmp_path / "a.bundle", list[Path]()
    if made_by == "export":  # without the export itself

        def copies(_: object, out: Output) -> None:
            shutil.copytree(tiny_bundle, out.path, dirs_exist_ok=True)

        monkeypatch.setattr("tfexport.export.artifacts.export.read_checkpoint", lambda *_: None)
        monkeypatch.setattr("tfexport.export.artifacts.export.write_bundle", copies)
    monkeypatch.setattr(f"tfexport.export.artifacts.{made_by}.pack_new", packed.append)
    make: Any = {"export": export, "quantize": quantize}[made_by]
    make(tiny_bundle, output, pack=False)
    assert packed == []
    make(tiny_bundle, output, force=True)
    assert packed == [output]


def test_there_is_nothing_to_pack_for_onnxruntime(copy: Path) -> None:
    (copy / WEIGHT_TABLE).unlink()
    rewrite(copy, lambda manifest: manifest["files"].pop(WEIGHT_TABLE))
    with pytest.raises(ConfigError, match="nothing to pack"):
        pack_weights(copy)
    assert list(copy.parent.glob("*.packed")) == []


def test_a_table_that_lacks_a_parameter_names_it(copy: Path) -> None:
    change_table(copy, lambda table: table.pop("output_proj.weight"))
    with pytest.raises(BundleError, match=r"no tensor 'output_proj\.weight'"):
        Translator(copy, engine="native")


def test_a_table_of_other_shapes_is_refused(copy: Path) -> None:
    def reshape(table: dict[str, Any]) -> None:
        entry = table["encoder.layers.0.feed_forward.up_proj.weight"]
        entry["shape"].reverse()
        entry["strides"].reverse()

    change_table(copy, reshape)
    with pytest.raises(BundleError, match=r"up_proj\.weight.*expected"):
        Translator(copy, engine="native")
