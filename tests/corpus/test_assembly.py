"""Outputs that come together of pieces, and are known by their content."""

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from tests.corpus.files import COUNTED, packed
from tests.corpus.runs import (
    JOB,
    SUFFIX,
    FailedError,
    clear_output,
    in_output,
    keep_pieces,
    partition_of,
    run,
    scanned,
    with_inputs,
)
from tfexport.corpus import assembly, filesystem
from tfexport.corpus.assembly import Assembly, ForeignError, Outcome, RunSettings
from tfexport.corpus.formats import FORMATS
from tfexport.corpus.pieces import PartitionError
from tfexport.corpus.stages import Coordinator


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    return with_inputs(tmp_path)


@pytest.mark.parametrize("name", SUFFIX)
def test_an_output_comes_of_its_pieces(folder: Path, name: str) -> None:
    partition = partition_of(folder, name)
    outcome, made = run(partition)
    assert (outcome.rows, made) == (5, 3)
    assert outcome.tokens == 3 * (5 - outcome.errors)
    assert len(outcome.samples) == outcome.errors == {"text": 1, "jsonl": 2, "parquet": 1}[name]
    assert [number for number, _ in outcome.samples] == {
        "text": [4],
        "jsonl": [3, 4],
        "parquet": [3],
    }[name]
    path = Path(partition.target.path)
    assert sorted(in_output(folder)) == sorted([path.name, f".{path.name}.done"])
    assert [entry.name for entry in (folder / "out").iterdir() if entry.is_dir()] == []
    before = path.stat().st_mtime_ns
    assert run(partition) == (outcome, 0)
    assert path.stat().st_mtime_ns == before
    if name == "text":
        assert path.read_text() == "ab→0\nbb→1\ncb→2\n\neb→4\n"


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "nothing left": lambda content: b"",
    "half": lambda content: content[: len(content) // 2],
    "the last byte gone": lambda content: content[:-1],
    "a byte more": lambda content: content + b"x",
    "another byte": lambda content: content[:-2] + b"X" + content[-1:],
    "no header": lambda content: content.partition(b"\n")[2],
    "a header of something else": lambda content: b'{"rows": 2}\n' + content.partition(b"\n")[2],
    "a header of nothing": lambda content: b'{"rows": 2, "samples": 5}\n',
    "a list": lambda content: b"[]\n",
    "no UTF-8": lambda content: b"\xff\n\xff",
    "deep": lambda content: b"[" * 60_000,
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("which", [0, 2])
def test_a_damaged_piece_is_noticed_and_made_again(folder: Path, damage: str, which: int) -> None:
    partition = partition_of(folder)
    expected, _ = run(partition)
    whole = in_output(folder)
    clear_output(folder)
    assert keep_pieces(partition) == 3
    pieces = sorted(name for name in in_output(folder) if ".parts/" in name and "/." not in name)
    assert len(pieces) == 3
    path = folder / "out" / pieces[which]
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    if keep_pieces(partition) == 0:  # its header is whole
        with pytest.raises(FailedError, match=f"piece {which + 1} is damaged. Run the command"):
            run(partition)
        assert not (folder / "out/o.txt").exists()
        assert keep_pieces(partition) == 1
    outcome, _ = run(partition)
    assert outcome == expected
    assert in_output(folder) == whole


def test_a_missing_piece_is_noticed(folder: Path) -> None:
    output = Assembly(partition_of(folder), "digest", JOB)
    output.keep(0, Outcome(2), b"a\nb\n")
    assert (output.piece(0), output.piece(1)) == ((Outcome(2), False), None)
    with pytest.raises(PartitionError, match=r"piece 2 is missing from .*which every machine of"):
        output.join(2)
    assert not (folder / "out/o.txt").exists()
    output.keep(1, Outcome(1, 2, 1, ((3, "why"),)), b"\n")
    assert output.join(2) == Outcome(3, 2, 1, ((3, "why"),))
    assert output.finished() == Outcome(3, 2, 1, ((3, "why"),))


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("which", ["o.txt", ".o.txt.done"])
@pytest.mark.parametrize("bundle", ["b", "another"])
def test_an_output_that_is_not_as_it_was_is_replaced_by_force_alone(
    folder: Path, damage: str, which: str, bundle: str
) -> None:
    partition = partition_of(folder)
    expected, _ = run(partition)
    whole, path = in_output(folder), folder / "out" / which
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    changed = in_output(folder)
    job = replace(JOB, made_of={**JOB.made_of, "bundle": bundle}, spell=lambda option: "--force")
    why = "was not written by a run" if which[0] == "." else "was changed after a run wrote it"
    with pytest.raises(FailedError, match=f"o.txt .*{why}. Move .*with --force$"):
        run(partition, job)
    assert in_output(folder) == changed
    outcome, made = run(partition, replace(job, force=True))
    assert (outcome, made) == (expected, 3)
    if bundle == "b":
        assert in_output(folder) == whole
    assert run(partition, job) == (expected, 0)


@pytest.mark.parametrize("earlier", [False, True])
def test_what_is_put_in_an_outputs_place_during_a_run_stays(folder: Path, earlier: bool) -> None:
    partition = partition_of(folder)
    if earlier:
        run(partition, RunSettings({"bundle": "old"}, COUNTED, 2))
    (step, *_) = scanned(partition)
    keep_pieces(partition)
    Path(partition.target.path).write_bytes(b"mine")
    why = "was changed after a run wrote it" if earlier else "exists, but was not written by a run"
    joined = Coordinator(JOB).join(partition, step.digest, step.pieces)
    assert f"o.txt {why}" in str(joined.failed)
    assert Path(partition.target.path).read_bytes() == b"mine"
    Path(partition.target.path).unlink()
    assert run(partition)[1] == 0


def test_an_output_whose_record_a_kill_has_prevented_is_a_runs(folder: Path) -> None:
    partition, old = partition_of(folder), RunSettings({"bundle": "old"}, COUNTED, 2)
    write = filesystem.write_atomically

    def killed(system: Any, path: str, *given: Any, **told: Any) -> Any:
        if path.endswith(".done"):
            raise KeyboardInterrupt
        return write(system, path, *given, **told)

    for job in (old, JOB):  # the second finds what the first has left
        with patch.object(assembly, "write_atomically", killed), pytest.raises(KeyboardInterrupt):
            run(partition, job)
    assert sorted(in_output(folder))[-1] == "o.txt"
    run(partition)
    assert Path(partition.target.path).read_text().startswith("ab→0")


def states(output: Assembly) -> tuple[bool, bool, bool]:
    try:
        output.check_replaceable()
    except ForeignError:
        foreign = True
    else:
        foreign = False
    return output.finished() is not None, output.is_outdated(), foreign


def test_an_output_is_known_by_what_it_is_made_of(folder: Path) -> None:
    partition = partition_of(folder)
    digest = FORMATS["text"].scan(partition.source, 2, COUNTED).digest
    mine = Assembly(partition, digest, JOB)
    assert states(mine) == (False, False, False)
    run(partition)
    assert states(mine) == (True, False, False)
    for other, job in (
        ("other", JOB),
        (digest, RunSettings({"bundle": "c", "options": {}}, COUNTED, 2)),
        (digest, RunSettings({"bundle": "b", "options": {"beam_size": 2}}, COUNTED, 2)),
        (digest, RunSettings({**JOB.made_of, "column": "other"}, COUNTED, 2)),
    ):
        assert states(Assembly(partition, other, job)) == (False, True, False)
    # The same, in another order and in other pieces.
    turned = RunSettings(
        {name: JOB.made_of[name] for name in reversed([*JOB.made_of])}, COUNTED, 999
    )
    assert states(Assembly(partition, digest, turned)) == (True, False, False)
    Path(partition.target.path).unlink()
    assert states(mine) == (False, False, False)
    (folder / "out/.o.txt.done").unlink()
    Path(partition.target.path).write_bytes(b"mine")
    assert states(mine) == (False, False, True)


def test_pieces_of_another_size_or_job_are_not_taken(folder: Path) -> None:
    partition = partition_of(folder)
    expected, _ = run(partition)
    whole = in_output(folder)
    for job in (replace(JOB, batch_rows=3), RunSettings({"bundle": "c"}, COUNTED, 2)):
        clear_output(folder)
        form = FORMATS["text"]
        digest = form.scan(partition.source, job.batch_rows, COUNTED).digest
        Assembly(partition, digest, job).keep(0, Outcome(77), b"wrong\n")
        assert run(partition) == (expected, 3)
        assert in_output(folder) == whole
        assert not (folder / "out/.o.txt.parts").exists()


def test_a_piece_that_comes_late_is_removed_by_the_next_run(folder: Path) -> None:
    partition = partition_of(folder)
    expected, _ = run(partition)
    digest = FORMATS["text"].scan(partition.source, 2, COUNTED).digest
    Assembly(partition, digest, JOB).keep(1, Outcome(2), b"late\n")
    assert run(partition) == (expected, 0)
    assert sorted(in_output(folder)) == [".o.txt.done", "o.txt"]
    assert not (folder / "out/.o.txt.parts").exists()


@pytest.mark.parametrize("compression", ["gzip", "bz2", "zstd", "lz4", "brotli"])
def test_an_output_may_be_compressed(folder: Path, compression: str) -> None:
    partition = partition_of(folder, compression=compression)
    expected, made = run(partition)
    content = Path(partition.target.path).read_bytes()
    with pa.CompressedInputStream(io.BytesIO(content), compression) as stream:
        assert stream.read().decode() == "ab→0\nbb→1\ncb→2\n\neb→4\n"
    assert (run(partition), made) == ((expected, 0), 3)


@pytest.mark.parametrize("name", SUFFIX)
def test_an_empty_input_gives_an_empty_output(folder: Path, name: str) -> None:
    partition = partition_of(folder, name)
    if name == "parquet":
        pq.write_table(pa.table({"text": pa.array([], pa.string())}), partition.source.path)
    else:
        Path(partition.source.path).write_bytes(b"")
    assert run(partition) == (Outcome(), 0)
    assert run(partition) == (Outcome(), 0)
    if name == "parquet":
        assert pq.read_table(partition.target.path).column_names[0] == "text"
    else:
        assert Path(partition.target.path).read_bytes() == b""
    assert not (folder / f"out/.o.{SUFFIX[name]}.parts").exists()


def test_an_input_that_is_gone_at_the_join_leaves_no_output(folder: Path) -> None:
    partition = partition_of(folder, "parquet")
    Path(partition.source.path).write_bytes(packed(b"", "gzip"))
    with pytest.raises(PartitionError, match="cannot be read as Parquet"):
        Assembly(partition, "digest", JOB).join(0)
    assert in_output(folder) == {}


def test_only_a_few_errors_of_rows_are_kept() -> None:
    one = Outcome(2, 3, 4, ((1, "a"), (2, "b"), (3, "c")))
    assert one + one == Outcome(4, 6, 8, (*one.samples, (1, "a"), (2, "b")))
    assert one + Outcome() == one
