"""Files by path and URI, and files that are written whole or not at all."""

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from tests.corpus.files import LOCAL, PACKED
from tfexport.corpus import filesystem
from tfexport.corpus.filesystem import (
    file_system,
    files_in,
    opened,
    read_small_file,
    remove_folder,
    write_atomically,
)
from tfexport.errors import ConfigError


def test_a_path_and_its_uri_are_one_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a b").mkdir()
    (tmp_path / "link").symlink_to("a b")
    monkeypatch.chdir(tmp_path)
    found = (tmp_path / "a b" / "c").as_posix()
    for place in (
        "a b/c",
        "link/c",
        "a b/./c/",
        (tmp_path / "a b" / "c").as_uri(),
        f"file://{tmp_path}/link/c/",
    ):
        system, path = file_system(place)
        assert (system, path) == (LOCAL, found)
    assert file_system("c:d")[1] == (tmp_path / "c:d").as_posix()


@pytest.mark.parametrize(
    "place",
    ["foo://bucket/a", "file://relative/a", "file://", "://a", "a b://c", "hdfs://localhost:1/a"],
)
def test_a_uri_of_an_unknown_kind_is_refused(place: str) -> None:
    with pytest.raises(ConfigError) as caught:
        file_system(place)
    assert str(caught.value).startswith(f"{place}: no file system that pyarrow can open: ")
    assert "Give a path, or a URI such as s3://bucket/folder" in str(caught.value)


@pytest.mark.parametrize(
    "place", ["foo://me:secret@host/a", "foo://host/a?key=secret", "a b://secret@c"]
)
def test_no_secret_of_a_uri_is_in_a_message(place: str) -> None:
    with pytest.raises(ConfigError) as caught:
        file_system(place)
    assert "secret" not in str(caught.value)


def make(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())


def names_in(system: fs.FileSystem, folder: str) -> list[str]:
    return [filesystem.relative(info.path, folder) for info in files_in(system, folder)]


def test_files_of_all_folders_but_hidden_ones_are_found(tmp_path: Path) -> None:
    kept = ["aa", "a b/ü\n.txt", "b", "b.c/d/e", "back\\slash", "back/slash", "x_y/z.",
            "{weird}*?", " "]  # fmt: skip
    hidden = [".a", "_SUCCESS", ".b/c", "_c/d", "d/_e/f", "d/.g", "d/e/.h/i/j"]
    make(tmp_path, *kept, *hidden)
    (tmp_path / "empty/folder").mkdir(parents=True)
    os.mkfifo(tmp_path / "pipe")
    assert names_in(LOCAL, tmp_path.as_posix()) == sorted(kept)
    # Other file systems go another way.
    inside = fs.SubTreeFileSystem(tmp_path.as_posix(), LOCAL)
    (tmp_path / "pipe").unlink()
    assert names_in(inside, "") == sorted(kept)
    assert [info.size for info in files_in(LOCAL, (tmp_path / "x_y").as_posix())] == [6]


def test_links_are_followed_but_not_in_a_circle(tmp_path: Path) -> None:
    make(tmp_path, "in/a.txt", "in/b/c.txt", "elsewhere/d.txt")
    (tmp_path / "in/up").symlink_to("..")
    (tmp_path / "in/b/self").symlink_to(".")
    (tmp_path / "in/far").symlink_to("../elsewhere")
    (tmp_path / "in/b/near").symlink_to("../../elsewhere/d.txt")
    (tmp_path / "elsewhere/back").symlink_to("../in")
    assert names_in(LOCAL, (tmp_path / "in").as_posix()) == [
        "a.txt", "b/c.txt", "b/near", "far/d.txt"
    ]  # fmt: skip


def test_links_to_pipes_and_devices_are_passed_over_as_these_are(tmp_path: Path) -> None:
    make(tmp_path, "in/a.txt")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "in/pipe.txt").symlink_to("../pipe")
    (tmp_path / "in/zero.txt").symlink_to("/dev/zero")
    (tmp_path / "in/twice.txt").symlink_to("zero.txt")
    assert names_in(LOCAL, (tmp_path / "in").as_posix()) == ["a.txt"]


def test_folders_that_link_to_one_another_are_entered_once(tmp_path: Path) -> None:
    count = 9  # 9! paths lead through them
    make(tmp_path, *(f"in/d{i}/e/a.txt" for i in range(count)), "far/g/b.txt")
    for one in range(count):
        for other in range(count):
            (tmp_path / f"in/d{one}/l{other}").symlink_to(f"../d{other}")
        (tmp_path / f"in/d{one}/m").symlink_to("../../far")
        (tmp_path / f"in/d{one}/n").symlink_to("../../far/g")
    assert names_in(LOCAL, (tmp_path / "in").as_posix()) == [
        "d0/e/a.txt", "d0/m/g/b.txt", *(f"d{i}/e/a.txt" for i in range(1, count))
    ]  # fmt: skip


def left_in(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


@pytest.mark.parametrize("compression", [None, *PACKED])
@pytest.mark.parametrize("beside", [None, "parts"])
def test_a_file_is_replaced_when_it_is_complete(
    tmp_path: Path, compression: str | None, beside: str | None
) -> None:
    path, other = tmp_path / "new/folder/file", beside and (tmp_path / beside).as_posix()
    seen = list[str]()

    def write(content: bytes) -> Any:
        def into(stream: Any) -> int:
            seen.extend(left_in(tmp_path))
            return int(stream.write(content))

        return write_atomically(LOCAL, path.as_posix(), into, folder=other, compression=compression)

    assert write(b"first" * 1000) == 5000
    assert "new/folder/file" not in seen
    assert write(b"second") == 6
    with opened(LOCAL, path.as_posix(), compression) as stream:
        assert stream.read() == b"second"
    assert left_in(tmp_path) == ["new", "new/folder", "new/folder/file", *filter(None, [beside])]
    # While it is written it has no name that any reader of suffixes would take.
    assert {len(Path(name).name) for name in seen if Path(name).name[0] == "."} == {13}


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()]
)
@pytest.mark.parametrize("compression", [None, "gzip"])
def test_an_error_while_writing_leaves_what_was_there(
    tmp_path: Path, error: BaseException, compression: str | None
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"before")

    def write(stream: Any) -> None:
        stream.write(b"x" * 100_000)
        raise error

    with pytest.raises(type(error)):
        write_atomically(LOCAL, path.as_posix(), write, compression=compression)
    assert left_in(tmp_path) == ["file"]
    assert path.read_bytes() == b"before"


@pytest.fixture(name="small_files")
def _small_files() -> Iterator[None]:
    """A disk on which no file can have more than 10,000 bytes: the system itself refuses it."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("small_files")
@pytest.mark.parametrize("size", [10_001, 5 << 20])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_full_disk_leaves_nothing(tmp_path: Path, size: int, compression: str | None) -> None:
    content = os.urandom(size)
    with pytest.raises(OSError, match="File too large"):
        write_atomically(LOCAL, f"{tmp_path}/file", lambda stream: stream.write(content),
                    compression=compression)  # fmt: skip
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("failing", ["create_dir", "open_output_stream", "move"])
def test_a_step_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    class Failing(fs.LocalFileSystem):  # type: ignore[misc]
        pass

    def fail(*given: Any, **named: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Failing, failing, fail)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(Failing(), f"{tmp_path}/file", lambda stream: stream.write(b"x"))
    assert left_in(tmp_path) == []


def test_where_no_folder_can_be_nothing_is_written(tmp_path: Path) -> None:
    make(tmp_path, "taken")
    with pytest.raises(OSError, match="taken"):
        write_atomically(LOCAL, f"{tmp_path}/taken/file", lambda stream: stream.write(b"x"))
    (tmp_path / "folder/inner").mkdir(parents=True)
    with pytest.raises(OSError, match="folder"):
        write_atomically(LOCAL, f"{tmp_path}/folder", lambda stream: stream.write(b"x"))
    assert left_in(tmp_path) == ["folder", "folder/inner", "taken"]


def test_small_files_and_folders_that_may_not_be_there(tmp_path: Path) -> None:
    make(tmp_path, "folder/a")
    assert read_small_file(LOCAL, f"{tmp_path}/folder/a") == b"folder/a"
    for path in (f"{tmp_path}/folder", f"{tmp_path}/none"):
        assert read_small_file(LOCAL, path) is None
    for _ in range(2):
        remove_folder(LOCAL, f"{tmp_path}/folder")
        assert left_in(tmp_path) == []
    make(tmp_path, "file")
    remove_folder(LOCAL, f"{tmp_path}/file")
    assert left_in(tmp_path) == ["file"]


def test_links_that_lead_nowhere_are_files_that_cannot_be_read(tmp_path: Path) -> None:
    make(tmp_path, "a.txt")
    (tmp_path / "broken.txt").symlink_to("nothing")
    (tmp_path / "circle.txt").symlink_to("circle.txt")
    assert names_in(LOCAL, tmp_path.as_posix()) == ["a.txt", "broken.txt", "circle.txt"]


class Vanishing(fs.LocalFileSystem):  # type: ignore[misc]
    """Where somebody removes the folder of a file that is about to be opened."""

    times = 1

    def open_output_stream(self, path: str, **named: Any) -> Any:
        if self.times:
            self.times -= 1
            shutil.rmtree(Path(path).parent)
        return super().open_output_stream(path, **named)


def test_a_folder_that_vanishes_is_made_again_once(tmp_path: Path) -> None:
    path = tmp_path / "parts" / "piece"
    write_atomically(Vanishing(), path.as_posix(), lambda stream: stream.write(b"x"))
    assert path.read_bytes() == b"x"
    disk = Vanishing()
    disk.times = 2
    with pytest.raises(FileNotFoundError):
        write_atomically(disk, path.as_posix(), lambda stream: stream.write(b"x"))


def test_what_is_written_is_seen_whole_before_it_has_its_name(tmp_path: Path) -> None:
    path, seen = tmp_path / "file", list[bytes]()

    def look(partial: str) -> None:
        assert not path.exists()
        seen.append(Path(partial).read_bytes())

    write_atomically(
        LOCAL, path.as_posix(), lambda stream: stream.write(b"x" * 99), before_move=look
    )
    assert seen == [path.read_bytes()]


def test_a_folder_that_somebody_writes_into_may_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Busy(fs.LocalFileSystem):  # type: ignore[misc]
        pass

    def fail(*given: Any) -> None:
        raise OSError(errno.ENOTEMPTY, "Directory not empty")

    make(tmp_path, "folder/a")
    monkeypatch.setattr(Busy, "delete_dir", fail)
    remove_folder(Busy(), f"{tmp_path}/folder")
    assert left_in(tmp_path) == ["folder", "folder/a"]
