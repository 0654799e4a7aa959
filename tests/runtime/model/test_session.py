"""Bundles whose files are links, and what is said of graphs that onnxruntime does not load."""

import contextlib
import errno
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnxruntime as ort
import pytest

from tests.support.links import LINKS, hard
from tests.support.paths import VERSION_1
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


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are text elsewhere")
def test_a_path_that_is_not_utf8_is_named_as_the_cause(tmp_path: Path) -> None:
    shutil.copytree(VERSION_1, tmp_path / "m\udcf6del" / "x.bundle")
    with pytest.raises(BundleError, match="its path is not UTF-8, which onnxruntime requires"):
        Translator(tmp_path / "m\udcf6del" / "x.bundle", engine="onnxruntime").generate([[5]])


@pytest.mark.parametrize(
    "work",
    [
        "translator.generate(rows, max_length=200)",
        "translator.generate(rows, max_length=200, beam_size=2)",
        "translator.generate(rows, max_length=200, return_attention=True)",
        "Translator(sys.argv[1], 2, engine='onnxruntime')",
    ],
    ids=["greedy", "beams", "steps", "opening"],
)
def test_a_process_ends_in_peace_while_daemon_threads_decode(work: str, tiny_bundle: Path) -> None:
    code = f"""
import atexit, sys, threading
from tfexport.runtime import Translator
begun = threading.Semaphore(0)
translator = Translator(sys.argv[1], 2, engine="onnxruntime")
rows = [[5, 6, 7], [8], [9, 2, 4, 4, 11]] * 8
def work():
    while True:
        {work}
        begun.release()
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
for _ in range(4):
    begun.acquire()
print(len(translator.generate(rows[:2], max_length=3)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tiny_bundle)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "2\n", "")


def test_functions_of_the_end_may_decode_and_forks_end(tiny_bundle: Path) -> None:
    code = """
import atexit, os, sys, threading, time
def last():
    # A fork may find locks of onnxruntime taken by a thread that it has not.
    rows = [[5, 6]] if os.getpid() == main else []
    print(os.getpid() == main, len(translator.generate(rows, max_length=3)), flush=True)
atexit.register(last)  # before our own, so that it is called behind it
from tfexport.runtime import Translator
main = os.getpid()
translator = Translator(sys.argv[1], 1, engine="onnxruntime")
def work():
    while True:
        translator.generate([[5, 6, 7]] * 60, max_length=200)
threading.Thread(target=work, daemon=True).start()
time.sleep(0.5)
if hasattr(os, "fork"):
    child = os.fork()  # while the thread is in a call
    if not child:
        began = time.monotonic()
        atexit.register(lambda: time.monotonic() - began < 120 or os._exit(1))
        sys.exit()
    assert os.waitpid(child, 0)[1] == 0
else:
    print("False 0")
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(tiny_bundle)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "False 0\nTrue 1\n", "")


@pytest.mark.onnxruntime
def test_threads_do_not_wait_at_full_load_behind_the_encoder(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, stops = ort.InferenceSession.__init__, {}

    def noted(self: Any, file: Path, options: ort.SessionOptions, **keywords: Any) -> None:
        begin(self, file, options, **keywords)
        stops[file.stem] = False
        with contextlib.suppress(RuntimeError):  # it was not set
            stop = self.get_session_options().get_session_config_entry(
                "session.force_spinning_stop"
            )
            stops[file.stem] = stop == "1"

    monkeypatch.setattr(ort.InferenceSession, "__init__", noted)
    translator = Translator(tiny_bundle, 2, engine="onnxruntime")
    translator.generate(ROWS, max_length=3, return_attention=True)  # step by step
    assert {role: stops[role] for role in ("encoder", "decoder")} == {
        "encoder": True, "decoder": False,
    }  # fmt: skip
