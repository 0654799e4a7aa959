"""Bundles whose files are links, and what is said of graphs that onnxruntime does not load."""

import contextlib
import errno
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.links import LINKS, hard
from tfexport.errors import BundleError
from tfexport.runtime import Translator
from tfexport.runtime.model import session

ROWS = [[5, 6, 7], [8], [9, 2, 4, 4, 11]]
MakeLinks = Callable[[Path, Path], Path]
every_link = pytest.mark.parametrize("make", LINKS.values(), ids=LINKS.keys())


@pytest.fixture(name="scratch")
def _scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@every_link
@pytest.mark.parametrize("engine", ["onnxruntime", "auto"])
def test_a_bundle_of_links_decodes_as_the_one_that_it_links_to(
    make: MakeLinks, engine: str, tiny_bundle: Path, tmp_path: Path, scratch: Path
) -> None:
    linked = Translator(make(tiny_bundle, tmp_path), 1, engine=engine)  # type: ignore[arg-type]
    plain = Translator(tiny_bundle, 1, engine=engine)  # type: ignore[arg-type]
    ways: list[dict[str, object]] = [{}, {"beam_size": 3}, {"return_attention": True}]
    for options in ways:
        found = linked.generate(ROWS, max_length=9, **options)  # type: ignore[call-overload]
        assert found == plain.generate(ROWS, max_length=9, **options)  # type: ignore[call-overload]
    assert not list(scratch.iterdir()), "no copy is left"


def test_no_room_for_a_copy_is_said_with_what_to_do(
    tiny_bundle: Path, tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    linked = hard(tiny_bundle, tmp_path)

    def full(*_paths: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(BundleError, match="are links") as raised:
        Translator(linked, 1, engine="onnxruntime")
    for part in (str(linked), str(scratch), "No space left on device", "TMPDIR", "cp -rL"):
        assert part in str(raised.value)
    assert not list(scratch.iterdir())


def test_what_onnxruntime_refuses_is_said_by_its_cause_alone(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def as_it_is(folder: Path, _names: object) -> Iterator[Path]:
        yield folder

    monkeypatch.setattr(session, "without_links", as_it_is)
    with pytest.raises(BundleError, match="multiple hard links") as raised:
        Translator(hard(tiny_bundle, tmp_path), 1, engine="onnxruntime")
    assert "Loop" not in str(raised.value)
    assert len(str(raised.value)) < 700
    assert len(session._reason_of(ValueError("x" * 5000))) < 500
