"""Which files a corpus has, where each goes, and what is refused before any work."""

from pathlib import Path

import pytest

from tfexport.corpus.partitions import Partition
from tfexport.corpus.partitions import find_partitions as find_input
from tfexport.errors import ConfigError, InputError


def find_partitions(input_: str, output: str, kind: str | None = None) -> list[Partition]:
    return find_input(input_, output, kind)[0]


def make(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())


def test_every_file_has_its_place_in_the_output(tmp_path: Path) -> None:
    names = {
        "a.txt": ("text", None), "b/c.JSONL": ("jsonl", None), "b/d.ndjson.gz": ("jsonl", "gzip"),
        "b/e f/ü.parquet": ("parquet", None), "x.pq": ("parquet", None), "noformat": ("text", None),
        "y.txt.ZST": ("text", "zstd"), "packed.bz2": ("text", "bz2"),
        "line\nbreak.txt": ("text", None),
        "back\\slash.txt": ("text", None), "back/slash.txt": ("text", None),
        "v1.2/c.txt.lz4": ("text", "lz4"), "100% #1?.txt.br": ("text", "brotli"),
    }  # fmt: skip
    make(tmp_path / "in", *names, ".hidden.txt", "_logs/a.csv", "b/_SUCCESS")
    output = tmp_path / "not/there yet"
    for place in (str(tmp_path / "in"), f"{tmp_path}/in/", f"file://{tmp_path}/in"):
        found = find_partitions(place, str(output))
        assert [part.name for part in found] == sorted(names)
        for part in found:
            kind, compression = names[part.name]
            assert part.format == kind
            assert part.source.compression == part.target.compression == compression
            assert part.source.path == (tmp_path / "in" / part.name).as_posix()
            assert part.target.path == (output / part.name).as_posix()
            assert part.size == len(part.name.encode())
    assert not output.exists()
    assert len({part.target.path for part in found}) == len(names)


def test_a_file_goes_to_a_file_of_any_compression(tmp_path: Path) -> None:
    make(tmp_path, "_in.txt.gz", "b.parquet")
    for name, packing in (
        ("out.txt", None),
        ("o.txt.zst", "zstd"),
        ("plain", None),
        ("o.gz", "gzip"),
    ):
        (part,) = find_partitions(f"{tmp_path}/_in.txt.gz", f"{tmp_path}/new/{name}")
        assert (part.name, part.format) == ("_in.txt.gz", "text")
        assert (part.source.compression, part.target.compression) == ("gzip", packing)
        assert part.target.path == f"{tmp_path}/new/{name}"
    (part,) = find_partitions((tmp_path / "b.parquet").as_uri(), (tmp_path / "c d.pq").as_uri())
    assert (part.format, part.target.path) == ("parquet", f"{tmp_path}/c d.pq")


def test_the_format_may_be_said(tmp_path: Path) -> None:
    make(tmp_path / "in", "a.csv", "b.json.gz", "c.txt")
    found = find_partitions(f"{tmp_path}/in", f"{tmp_path}/out", "jsonl")
    assert [(part.format, part.source.compression) for part in found] == [
        ("jsonl", None), ("jsonl", "gzip"), ("jsonl", None)
    ]  # fmt: skip
    (part,) = find_partitions(f"{tmp_path}/in/a.csv", f"{tmp_path}/b.tsv.gz", "text")
    assert (part.format, part.target.compression) == ("text", "gzip")


def test_a_link_that_leads_nowhere_is_a_partition(tmp_path: Path) -> None:
    make(tmp_path / "in", "a.txt")
    (tmp_path / "in/b.txt").symlink_to("nothing")
    found = find_partitions(f"{tmp_path}/in", f"{tmp_path}/out")
    assert [(part.name, part.size) for part in found] == [("a.txt", 5), ("b.txt", 0)]


def test_files_of_unknown_format_are_passed_over(tmp_path: Path) -> None:
    make(tmp_path / "in", "a.de", "b.json", "c.txt", "d/e.xz", "f.zip", "h.tar.gz", "i.txt.7z")
    partitions, passed_over = find_input(f"{tmp_path}/in", f"{tmp_path}/out")
    assert [part.name for part in partitions] == ["c.txt"]
    assert passed_over == [
        "a.de: .de is not a known suffix",
        "b.json: .json is not a known suffix",
        "d/e.xz: .xz files are not supported",
        "f.zip: .zip files are not supported",
        "h.tar.gz: .tar is not a known suffix",
        "i.txt.7z: .7z files are not supported",
    ]
    make(tmp_path / "in", "g.parquet.gz")
    with pytest.raises(InputError, match=r"g.parquet.gz: Parquet"):
        find_input(f"{tmp_path}/in", f"{tmp_path}/out")


@pytest.mark.parametrize(
    ("patterns", "taken"),
    [
        (["*.txt"], ["a.txt", "b/c.txt", "b/d/e.txt"]),
        (["b/*"], ["b/c.txt", "b/d/e.txt", "b/f.jsonl"]),
        (["c.*", "*.jsonl"], ["b/c.txt", "b/f.jsonl"]),
        (["?.txt", "a.txt"], ["a.txt", "b/c.txt", "b/d/e.txt"]),
    ],
)
def test_patterns_say_which_files_are_taken(
    tmp_path: Path, patterns: list[str], taken: list[str]
) -> None:
    make(tmp_path / "in", "a.txt", "b/c.txt", "b/d/e.txt", "b/f.jsonl", "g.de")
    partitions, passed_over = find_input(f"{tmp_path}/in", f"{tmp_path}/out", include=patterns)
    assert [part.name for part in partitions] == taken
    assert passed_over == []


def test_patterns_that_do_not_do_are_refused(tmp_path: Path) -> None:
    make(tmp_path / "in", "a.txt", "g.de")
    with pytest.raises(InputError, match=r"in: g.de: .de is not a known suffix"):
        find_input(f"{tmp_path}/in", f"{tmp_path}/out", include=["*"])
    partitions, _ = find_input(f"{tmp_path}/in", f"{tmp_path}/out", "text", include=["*.de"])
    assert [part.name for part in partitions] == ["g.de"]
    with pytest.raises(InputError, match=r"no file whose name is like '\*.fr'"):
        find_input(f"{tmp_path}/in", f"{tmp_path}/out", include=["*.fr"])
    with pytest.raises(ConfigError, match=r"include: .*a.txt is one file"):
        find_input(f"{tmp_path}/in/a.txt", f"{tmp_path}/out.txt", include=["*"])


def test_all_files_of_unknown_format_are_named_if_there_are_no_others(tmp_path: Path) -> None:
    make(tmp_path / "in", *(f"{number:03}.de" for number in range(100)))
    with pytest.raises(InputError) as caught:
        find_partitions(f"{tmp_path}/in", f"{tmp_path}/out")
    assert "009.de: .de is not a known suffix" in str(caught.value)
    assert "010.de" not in str(caught.value)
    assert "90 more" in str(caught.value)
    remedy = "Suffixes: .txt, none, .jsonl, .ndjson, .parquet, .pq, .csv, .tsv, and with a"
    assert remedy in str(caught.value)


@pytest.mark.parametrize(
    ("input_", "output"),
    [
        ("in", "in"), ("in", "in/out"), ("in/b", "in"), ("in/a.txt", "in/a.txt"),
        ("in", "in/../in/b"), ("link", "in"), ("in", "link/new"), ("in/a.txt", "in"),
        ("in", "file://{}/in"), ("file://{}/in", "in/out"), ("file://{}/link", "file://{}/in/b"),
    ],
)  # fmt: skip
def test_input_and_output_have_to_lie_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, input_: str, output: str
) -> None:
    make(tmp_path, "in/a.txt", "in/b/c.txt")
    (tmp_path / "link").symlink_to("in")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="one contains the other; name another"):
        find_partitions(input_.format(tmp_path), output.format(tmp_path))


@pytest.mark.parametrize("target", ["out", ".", "out/deeper", "out/a.txt", "out/not there"])
@pytest.mark.parametrize("is_there", [True, False])
def test_a_link_from_the_input_to_the_output_is_refused(
    tmp_path: Path, target: str, is_there: bool
) -> None:
    make(tmp_path, "in/a.txt", "in/b/c.txt", "elsewhere/d.txt")
    if is_there:
        make(tmp_path, "out/a.txt", "out/deeper/b.txt")
    (tmp_path / "in/far").symlink_to("../elsewhere")
    (tmp_path / "elsewhere/results").symlink_to(tmp_path / target)
    (tmp_path / "in/b/too").symlink_to("../../out")
    with pytest.raises(ConfigError) as caught:
        find_partitions(f"{tmp_path}/in", f"{tmp_path}/out")
    assert "the output is inside the input, through links" in str(caught.value)
    assert "in/far/results" in str(caught.value)
    assert "in/b/too" in str(caught.value)


def test_names_that_only_begin_alike_lie_apart(tmp_path: Path) -> None:
    make(tmp_path, "in/a.txt")
    (part,) = find_partitions(f"{tmp_path}/in", f"{tmp_path}/in-en")
    assert part.target.path == f"{tmp_path}/in-en/a.txt"


@pytest.mark.parametrize(
    ("input_", "output", "kind", "message"),
    [
        (
            "a.txt",
            "a.parquet",
            ConfigError,
            "the output has the format parquet, but the input has text",
        ),
        ("b.pq", "b.txt", ConfigError, "the output has the format text, but the input has parquet"),
        (
            "c.jsonl.gz",
            "c.gz",
            ConfigError,
            "the output has the format text, but the input has jsonl",
        ),
        ("a.txt", "a.csv", ConfigError, "the output has the format csv, but the input has text"),
        ("a.txt", "a.de", InputError, r"^a.de: .de is not a known suffix"),
        ("x.de", "b.txt", InputError, r"^x.de: .de is not a known suffix"),
        ("a.txt", "a.txt.xz", InputError, r"a.txt.xz: .xz files are not supported"),
        ("b.pq", "b.pq.gz", InputError, "Parquet files are compressed"),
        ("a.txt", "folder", ConfigError, "folder: is a folder, and the input is one file"),
        ("folder", "a.txt", ConfigError, "a.txt: is a file, and the input is a folder"),
        ("none", "out", InputError, "none: no such file or folder"),
        ("empty", "out", InputError, "empty: contains no file. Hidden files"),
        ("hidden", "out", InputError, "hidden: contains no file"),
        ("/dev/null", "out", InputError, "/dev/null: neither a file nor a folder"),
        ("foo://a", "out", ConfigError, "foo://a: no file system that pyarrow can open"),
        ("a.txt", "foo://a", ConfigError, "foo://a: no file system that pyarrow can open"),
    ],
)
def test_what_cannot_be_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, input_: str, output: str,
    kind: type[Exception], message: str,
) -> None:  # fmt: skip
    make(
        tmp_path,
        "a.txt",
        "b.pq",
        "c.jsonl.gz",
        "x.de",
        "folder/a.txt",
        "hidden/.a",
        "hidden/_b/c.txt",
    )
    (tmp_path / "empty/inner").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind, match=message):
        find_partitions(input_, output)


def test_names_that_are_not_utf_8_are_named(tmp_path: Path) -> None:
    make(tmp_path, "in/a.txt")
    Path(f"{tmp_path}/in/\udcff.txt").write_bytes(b"")
    with pytest.raises(InputError) as caught:
        find_partitions(f"{tmp_path}/in", f"{tmp_path}/out")
    assert r"names are not UTF-8, rename them: " in str(caught.value)
    assert r"\udcff.txt" in str(caught.value)
    assert str(caught.value).encode()
    with pytest.raises(ConfigError, match=r"dcff.txt': is not UTF-8; rename it"):
        find_partitions(f"{tmp_path}/in/\udcff.txt", f"{tmp_path}/out")
