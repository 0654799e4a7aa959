"""Bundles that are fetched into a node's temporary folder."""

import tempfile
from pathlib import Path

import pytest

from tfexport.bundle import MANIFEST, open_bundle
from tfexport.corpus.shipping import ShippedBundle, ship


@pytest.fixture(name="shipped")
def _shipped(tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ShippedBundle:
    """As a node has it that does not see the driver's disk; the object store is this process."""
    monkeypatch.setattr("ray.put", lambda part: part)
    monkeypatch.setattr("ray.get", lambda part: part)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    sent = ship(tiny_bundle, shared=False)
    return ShippedBundle(str(tmp_path / "elsewhere"), sent.digest, sent.parts)


def test_a_bundle_is_fetched_once(shipped: ShippedBundle) -> None:
    folder = shipped.folder()
    open_bundle(folder)
    before = (folder / MANIFEST).stat().st_ino
    assert shipped.folder() == folder
    assert (folder / MANIFEST).stat().st_ino == before


@pytest.mark.parametrize("gone", [MANIFEST, "weights.bin", None])
def test_a_bundle_of_which_files_are_gone_is_fetched_anew(
    shipped: ShippedBundle, gone: str | None
) -> None:
    folder = shipped.folder()
    for name in shipped.parts if gone is None else [gone]:
        (folder / name).unlink()
    assert shipped.folder() == folder
    open_bundle(folder)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
