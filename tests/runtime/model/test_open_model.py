"""The choice of an engine, with and without the native one."""

import dataclasses
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tfexport.bundle import Manifest, open_bundle
from tfexport.errors import ConfigError, TfexportWarning
from tfexport.runtime import Translator
from tfexport.runtime.model.native_engine import uncovered, why_not_native
from tfexport.runtime.model.open_model import choose_engine

INSTALLED = find_spec("tfexport_native") is not None


@pytest.fixture
def manifest(tiny_bundle: Path) -> Manifest:
    return open_bundle(tiny_bundle)


def test_auto_takes_the_native_engine_where_it_is(manifest: Manifest) -> None:
    engine, reason = choose_engine(manifest)
    assert engine == ("native" if INSTALLED else "onnxruntime")
    assert reason.partition(";")[0] == ("" if INSTALLED else "tfexport-native is not installed")


def test_without_the_distribution_auto_says_why(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tfexport_native", None)
    assert choose_engine(manifest)[0] == "onnxruntime"
    with pytest.raises(ConfigError, match="cannot run this bundle: tfexport-native"):
        choose_engine(manifest, "native")


def test_onnxruntime_can_be_asked_for(tiny_bundle: Path) -> None:
    translator = Translator(tiny_bundle, engine="onnxruntime")
    assert translator.engine.model.engine == "onnxruntime"
    assert translator.engine.reason == "onnxruntime was requested"
    assert translator.generate([[4, 5]])[0].hypotheses


@pytest.mark.parametrize("name", ["cpu", "", None, 3])
def test_unknown_engines_are_refused(tiny_bundle: Path, name: Any) -> None:
    with pytest.raises(ConfigError, match="not one of auto, onnxruntime, native"):
        Translator(tiny_bundle, engine=name)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"module": {}}, "a custom module"),
        ({"files": {}}, r"no weights\.json"),
        ({"files": {}, "quantization": {"weights": "int4"}}, "int4"),
    ],
)
def test_what_the_engine_cannot_read_is_named(
    manifest: Manifest, changes: dict[str, Any], reason: str
) -> None:
    other = dataclasses.replace(manifest, **changes)
    with pytest.raises(ConfigError, match=reason):
        choose_engine(other, "native")


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"norm": "batch"}, "norm 'batch'"),
        ({"norm_bias": "yes"}, "norm_bias 'yes'"),
        ({"norm": ["layer"]}, "norm ['layer']"),
        ({"decoder_num_heads": "x"}, "decoder_num_heads 'x'"),
        ({"d_model": 0}, "d_model 0"),
        ({"a_new_key": False}, "config key 'a_new_key'"),
        ({"positions": "alibi"}, "positions 'alibi'"),
    ],
)
def test_an_unknown_config_is_not_covered(
    manifest: Manifest, change: dict[str, Any], found: str
) -> None:
    assert found in uncovered({**manifest.config, **change})
    other = dataclasses.replace(manifest, config={**manifest.config, **change})
    assert found in why_not_native(other)


def test_a_config_that_lacks_keys_is_not_covered(manifest: Manifest) -> None:
    fewer = {key: value for key, value in manifest.config.items() if key != "residual_scale"}
    assert "residual_scale" in uncovered(fewer)


def test_an_engine_that_cannot_be_loaded_is_not_taken(tiny_bundle: Path) -> None:
    code = (
        "from tfexport.bundle import read_manifest\n"
        "from tfexport.runtime.model.open_model import choose_engine\n"
        f"print(*choose_engine(read_manifest({str(tiny_bundle)!r})))"
    )
    broken = {**os.environ, "TFEXPORT_NATIVE_LIBRARY": "/nowhere.so"}
    done = subprocess.run([sys.executable, "-c", code], env=broken, capture_output=True, text=True)
    why = "cannot be loaded: /nowhere.so" if INSTALLED else "is not installed"
    assert done.stdout.startswith(f"onnxruntime tfexport-native {why}"), done.stderr
    assert (f"onnxruntime decodes instead: tfexport-native {why}" in done.stderr) == INSTALLED


@pytest.mark.parametrize("interface", [-1, 1], ids=["older", "newer"])
def test_an_engine_of_another_interface_is_not_taken(
    tiny_bundle: Path, interface: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = pytest.importorskip("tfexport_native.library", reason="tfexport-native is missing")
    ours = library.LIBRARY.tfn_version()
    other = SimpleNamespace(tfn_version=lambda: ours + interface)
    monkeypatch.setattr(library, "LIBRARY", other)
    why = (
        rf"tfexport_native has interface {ours + interface}; this tfexport needs {ours}\. "
        "Install both in the same version"
    )
    with pytest.raises(ConfigError, match=f"cannot run this bundle: tfexport-native in .*{why}"):
        Translator(tiny_bundle, engine="native")
    with pytest.warns(TfexportWarning, match=why):
        translator = Translator(tiny_bundle)
    assert translator.engine.model.engine == "onnxruntime"
