"""``tfexport optimize``."""

import shutil
import sys
from pathlib import Path

import pytest

from tests.support.command import invoke


def test_without_the_native_engine_it_says_so(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tfexport_native", None)
    result = invoke("optimize", tiny_bundle)
    assert result.exit_code == 2
    assert "tfexport-native" in result.stderr


def test_what_it_writes_lies_beside_the_bundle(tiny_bundle: Path, tmp_path: Path) -> None:
    pytest.importorskip("tfexport_native", reason="tfexport-native is not installed")
    copy = shutil.copytree(tiny_bundle, tmp_path / "copy.bundle")
    said = invoke("optimize", f"{copy}/").stdout
    (packed,) = tmp_path.glob("copy.bundle.*.packed")
    assert said.startswith(f"{packed}: ")
    assert invoke("optimize", copy).stdout == said  # packed again
    packed.write_text("notes of somebody")
    assert "already exists" in invoke("optimize", copy).stderr
    assert packed.read_text() == "notes of somebody"
    assert invoke("optimize", copy, "--force").stdout == said
