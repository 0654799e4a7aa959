"""Manifests that are damaged, newer, or made by hand."""

import dataclasses
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.support.manifests import rewrite, write
from tfexport import bundle
from tfexport.bundle import FORMAT_VERSION, MANIFEST, SpecialIds, open_bundle, read_manifest
from tfexport.errors import BundleError
from tfexport.languages import Languages
from tfexport.manifest import Manifest
from tfexport.speech import Speech


def test_any_changed_byte_of_the_manifest_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.bundle")
    file = tmp_path / "a.bundle" / MANIFEST
    original = file.read_bytes()
    for at in range(0, len(original), 7):
        content = bytearray(original)
        content[at] ^= 4
        file.write_bytes(content)
        try:
            same = json.loads(content) == json.loads(original)  # white space does not count
        except ValueError:
            same = False
        if not same:
            with pytest.raises(BundleError):
                read_manifest(tmp_path / "a.bundle")


def test_newer_format_names_both_versions(tmp_path: Path) -> None:
    write(tmp_path / "a.bundle")
    rewrite(tmp_path / "a.bundle", lambda m: m.update(format_version=FORMAT_VERSION + 1, new={}))
    with pytest.raises(BundleError, match="bundle format 2; this tfexport reads format 1"):
        open_bundle(tmp_path / "a.bundle")


@pytest.mark.parametrize(
    "name",
    ["../secret", "/etc/passwd", "a/../../b", "C:\\windows", "..\\up", "\\\\host\\share", ""],
)
def test_path_that_leaves_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    write(tmp_path / "a.bundle")
    rewrite(
        tmp_path / "a.bundle", lambda m: m["files"].update({name: {"size": 0, "sha256": "0" * 64}})
    )
    with pytest.raises(BundleError, match="leaves the bundle's folder"):
        open_bundle(tmp_path / "a.bundle")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m["graphs"].update(encoder="other.onnx"), "'other.onnx' is used but not listed"),
        (lambda m: m["graphs"].pop("decoder"), "decoder is missing"),
        (lambda m: m["special_ids"].update(eos="2"), "special_ids.eos: '2' is not an integer"),
        (lambda m: m["special_ids"].update(bos=None), "special_ids.bos: None"),
        (lambda m: m["limits"].update(source_vocab_size=0), "limits.source_vocab_size: 0"),
        (lambda m: m["config"].update(num_heads=True), "config.num_heads: True"),
        (lambda m: m["config"].pop("add_source_bos"), "config.add_source_bos"),
        (lambda m: m["config"].pop("d_model"), "config.d_model: missing"),
        (lambda m: m.update(minimum_onnxruntime=1.2), "minimum_onnxruntime: 1.2 is not a version"),
        (lambda m: m.pop("limits"), "limits: missing"),
        (lambda m: m.update(surprise=1), "surprise: unknown key"),
        (lambda m: m.update(files=[]), r"files: \[\] is not an object"),
        (
            lambda m: m.update(minimum_onnxruntime="1" * 4000),
            "minimum_onnxruntime: '111.* is not a version",
        ),
        (lambda m: m["special_ids"].update(pad=10**20), r"special_ids.pad: 1000.* to 2147483647"),
        (lambda m: m["special_ids"].update(pad=11), "pad: 11 is not an id of the source voc"),
        (lambda m: m["special_ids"].update(bos=13), "bos: 13 is not an id of the target voc"),
        (lambda m: m["special_ids"].update(eos=11), "eos: 11 is not an id of the source voc"),
        (lambda m: m["special_ids"].update(unk=11), "unk: 11 is not an id of the source voc"),
        (lambda m: m["config"].update(eos_id=3), "special_ids.eos: 2 contradicts config.eos_id"),
        (lambda m: m["config"].update(target_vocab_size=9), "limits.target_vocab_size: 13 contr"),
        (lambda m: m["config"].update(num_decoder_layers=10**9), "an integer from 1 to 10000"),
        (lambda m: m.update(opset=22), "opset: 22 is not an object"),
        (lambda m: m.update(opset={"": "22"}), "opset.: '22' is not an integer"),
        (lambda m: m.update(quantization="int8"), "quantization: 'int8' is not an object"),
        (lambda m: m.update(quantization={"kept": 1, "gate": {}}), "quantization.weights: missing"),
        (lambda m: m.update(parity={"tokens": 3}), "parity.reference: missing"),
        (lambda m: m["files"].update(a={"size": -1, "sha256": ""}), "files.a.sha256: '' is not 64"),
        (
            lambda m: m["files"].update({"a\0": {"size": 1, "sha256": "0" * 64}}),
            "leaves the bundle",
        ),
        (lambda m: m["tokenizers"].update(both={"kind": "words", "file": "x"}), "both: not one of"),
        (lambda m: m.update(format_version="1"), "format_version is '1'"),
        (lambda m: m.update(format="zip"), "not the manifest of a tfexport bundle"),
    ],
)
def test_manifest_made_by_hand_is_checked(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    write(tmp_path / "a.bundle")
    rewrite(tmp_path / "a.bundle", change)
    with pytest.raises(BundleError, match=message):
        open_bundle(tmp_path / "a.bundle")


def test_nesting_as_deep_as_json_can_read_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.bundle")

    def rewrite_and_open() -> None:
        deep = json.loads("[" * 950 + "]" * 950)
        rewrite(tmp_path / "a.bundle", lambda m: m["config"].update(x=deep))
        open_bundle(tmp_path / "a.bundle")

    # A thread of its own has all of Python's stack, however deep the caller's is.
    with ThreadPoolExecutor(1) as pool, pytest.raises(BundleError, match="nested more than 20"):
        pool.submit(rewrite_and_open).result()


def test_all_problems_of_a_manifest_are_named_at_once(tmp_path: Path) -> None:
    write(tmp_path / "a.bundle")

    def change(values: dict[str, Any]) -> None:
        values.update(opset=[], parity=3, ir_version=None)
        values["limits"].update(max_source_length=2**31, target_vocab_size="13")

    rewrite(tmp_path / "a.bundle", change)
    with pytest.raises(BundleError, match="5 problems"):
        open_bundle(tmp_path / "a.bundle")


@pytest.mark.parametrize("change", [{"tfexport_version": "\ud800"}, {"opset": {"\udfff": 1}}])
def test_half_a_surrogate_pair_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    write(tmp_path / "a.bundle")
    file = tmp_path / "a.bundle" / MANIFEST
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(BundleError, match="is not valid Unicode text"):
        open_bundle(tmp_path / "a.bundle")
    assert not bundle.is_bundle(tmp_path / "a.bundle")


def test_manifest_of_many_megabytes_is_not_read(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_bytes(b" " * (bundle.MAX_MANIFEST_BYTES + 1))
    with pytest.raises(BundleError, match="more than 4194304 bytes"):
        open_bundle(tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[1]", b"\xff\xfe", b"null", b"[" * 100_000], ids=range(6)
)
def test_file_that_is_no_manifest_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / MANIFEST).write_bytes(content)
    with pytest.raises(BundleError):
        open_bundle(tmp_path)


@pytest.mark.parametrize("name", [each.name for each in dataclasses.fields(Manifest)])
def test_every_key_is_written_and_needed(tmp_path: Path, name: str) -> None:
    write(tmp_path / "a.bundle")
    rewrite(tmp_path / "a.bundle", lambda m: m.pop(name))
    with pytest.raises(BundleError, match=f"{name}: missing"):
        open_bundle(tmp_path / "a.bundle")


WAVEFORM = {
    "kind": "waveform", "input": "samples", "sampling_rate": 16000, "do_normalize": False
}  # fmt: skip
LOG_MEL = {
    "kind": "log_mel", "input": "samples", "sampling_rate": 16000, "feature_size": 80, "n_fft": 400,
    "hop_length": 160, "num_samples": 480000, "padding_value": 0.0, "do_normalize": False,
}  # fmt: skip
SPEECH = dataclasses.asdict(Speech(no_timestamps=8, positions=30))
IDS = {"pad": 0, "bos": 1, "eos": 2, "unk": None, "start": None}
LANGUAGES = Languages({"de": 3, "en": 4}, "before", "first", "de", "en")


@pytest.mark.parametrize(
    "changes",
    [
        {"special_ids": SpecialIds(0, 1, 2, start=5)},
        {"generation": {"beam_size": 4, "suppress_sequences": [[3, 4]]}},
        {"languages": LANGUAGES},
        {"languages": Languages(source="de", target="en")},
    ],
    ids=["start", "generation", "languages", "languages without tokens"],
)
def test_what_a_model_says_about_decoding_is_read_back(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    write(tmp_path / "a.bundle")
    written = dataclasses.replace(read_manifest(tmp_path / "a.bundle"), **changes)
    (tmp_path / "a.bundle" / MANIFEST).write_text(written.to_json())
    assert open_bundle(tmp_path / "a.bundle") == written


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"special_ids": {**IDS, "start": 13}}, "start: 13 is not an id"),
        ({"special_ids": {**IDS, "start": "1"}}, "start: '1' is not an integer"),
        ({"module": {}}, "module.inputs: missing"),
        ({"reads": "words"}, "reads: 'words' is not one of texts"),
        ({"preprocessing": []}, r"preprocessing: \[\] is not an object"),
        ({"preprocessing": {"kind": "smell"}}, "preprocessing.kind: 'smell' is not one of log_mel"),
        ({"preprocessing": {**WAVEFORM, "sampling_rate": 0}}, "sampling_rate: 0 is not an integer"),
        ({"preprocessing": {**WAVEFORM, "gain": 1}}, "preprocessing.gain: unknown key"),
        ({"preprocessing": WAVEFORM}, "preprocessing.input: 'samples' is not an input of the"),
        (
            {"preprocessing": {**LOG_MEL, "hop_length": 1, "num_samples": 2**22}},
            "to 134217728 values",
        ),
        ({"preprocessing": {**LOG_MEL, "num_samples": 200}}, "not more than half of n_fft"),
        ({"preprocessing": {**LOG_MEL, "padding_value": 1e300}}, "padding_value: 1e.* is not from"),
        ({"speech": {"no_timestamps": 1}}, "speech.positions: missing"),
        ({"speech": {**SPEECH, "no_timestamps": 12}}, "12 leaves no timestamps in a vocabulary"),
        ({"speech": {**SPEECH, "languages": {"de": 13}}}, "languages.de: 13 is not an id of the"),
        ({"speech": {**SPEECH, "languages": {"de": 4}}}, "speech.tasks: not those of a model of"),
        ({"speech": {**SPEECH, "positions": 2**40}}, "positions: 1.* is not an integer from 4"),
        ({"speech": {**SPEECH, "median_filter_width": 4}}, "median_filter_width: 4 is not odd"),
        ({"speech": {**SPEECH, "alignment_heads": [[1]]}}, "a head is not a pair"),
        ({"speech": {**SPEECH, "language": "de"}}, "language: 'de' is not one of the languages"),
        ({"speech": SPEECH}, "does not take one input of frames of a fixed number"),
        ({"origins": {"norm": 1}}, "origins.norm: 1 is not text"),
        ({"generation": {"callback": 1}}, "generation.callback: unknown key"),
        ({"generation": {"beam_size": True}}, "generation.beam_size: True is not an integer"),
        ({"generation": {"early_stopping": "never"}}, "early_stopping: 'never' is not true"),
        ({"generation": {"search_rules": "other"}}, "search_rules: 'other' is not one of"),
        ({"generation": {"first_token": 13}}, "first_token: 13 is not an id of the target"),
        ({"generation": {"suppress_tokens": ["x"]}}, r"suppress_tokens\[0\]: 'x'"),
        ({"generation": {"suppress_sequences": [[1, 13]]}}, r"suppress_sequences\[0\]: 13"),
        ({"generation": {"end_tokens": [13]}}, r"end_tokens\[0\]: 13 is not an id"),
        ({"generation": []}, r"generation: \[\] is not an object"),
        ({"languages": {"ids": {}}}, "languages.source_place: missing"),
        ({"languages": asdict(LANGUAGES) | {"ids": {}}}, "source_place: 'before', and there"),
        ({"languages": asdict(LANGUAGES) | {"source": "fr"}}, "source: 'fr' is not one of"),
        ({"languages": asdict(LANGUAGES) | {"ids": {"de": 3, "en": 11}}}, "11 is not an id of th"),
        ({"languages": asdict(LANGUAGES) | {"target_place": "before"}}, "target_place: 'before'"),
        ({"languages": asdict(LANGUAGES) | {"source": 3}}, "source: 3 is not a language code"),
        ({"languages": asdict(LANGUAGES) | {"ids": {"": 3, "de": 3, "en": 4}}}, "code is empty"),
    ],
)
def test_what_a_hand_says_about_decoding_is_checked(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    write(tmp_path / "a.bundle")
    rewrite(tmp_path / "a.bundle", lambda m: m.update(change))
    with pytest.raises(BundleError, match=message):
        open_bundle(tmp_path / "a.bundle")
