"""Files of packed weights: the same results, or refused by name."""

import dataclasses
import multiprocessing
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn import (
    draw_config,
    draw_halves,
    draw_model,
    draw_sources,
    draw_weights,
    engine_config,
    engine_model,
)
from numpy.typing import NDArray
from tfexport_native import (
    Model,
    NativeError,
    PackedFile,
    PackedFileError,
    Tensor,
    instruction_sets,
)

from tfexport.model_src import TransformerConfig

SEEDS = range(6)


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_packed_file_gives_the_same_results(seed: int, int8: bool, tmp_path: Path) -> None:
    config, tensors = draw_weights(seed, int8)
    name = instruction_sets()[seed % len(instruction_sets())]
    file = PackedFile(tmp_path / "model.packed", "digest")
    sources = draw_sources(config, seed)
    packed = Model(engine_config(config), tensors, 3, name)
    packed.save(file)
    again = Model(engine_config(config), tensors, 1, name, file)
    again.save(PackedFile(tmp_path / "again.packed", "digest"))
    assert file.path.read_bytes() == (tmp_path / "again.packed").read_bytes()
    assert str(file.path) in Path("/proc/self/maps").read_text()
    for one, other in zip(packed.encode(sources), again.encode(sources), strict=True):
        np.testing.assert_array_equal(one, other)
    for one, other in zip(
        packed.generate(sources, 9, True), again.generate(sources, 9, True), strict=True
    ):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.packed", "model.packed"]


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_order_in_memory_does_not_change_what_is_packed(
    seed: int, int8: bool, tmp_path: Path
) -> None:
    config, tensors = draw_weights(seed, int8)
    orders = {"rows": np.ascontiguousarray, "columns": np.asfortranarray, "apart": _apart}
    for sets in instruction_sets():
        found = set()
        for name, order in orders.items():
            file = PackedFile(tmp_path / f"{name}.packed", "")
            moved = {
                key: tensor._replace(values=order(tensor.values)) if tensor.values.ndim == 2
                else tensor
                for key, tensor in tensors.items()
            }  # fmt: skip
            Model(engine_config(config), moved, 2, sets).save(file)
            # Projections of rows that lie apart are in the file as well.
            model = Model(engine_config(config), moved, 2, sets, file)
            sources = draw_sources(config, seed)
            sequences, _, scores = model.generate(sources, 9, True)
            assert scores is not None
            found.add((sequences.tobytes(), scores.tobytes()))
        assert len(found) == 1


def _apart(values: NDArray[Any]) -> NDArray[Any]:
    wide = np.zeros((2 * values.shape[0], 3 * values.shape[1]), values.dtype)
    wide[::2, ::3] = values
    return wide[::2, ::3]


def test_results_do_not_depend_on_the_threads_that_packed(tmp_path: Path) -> None:
    config, tensors = draw_weights(3)
    files = [PackedFile(tmp_path / f"{threads}.packed", "") for threads in (1, 2, 5)]
    for file in files:
        Model(engine_config(config), tensors, int(file.path.stem)).save(file)
    assert len({file.path.read_bytes() for file in files}) == 1


@pytest.fixture
def saved(tmp_path: Path) -> tuple[TransformerConfig, dict[str, Tensor], PackedFile]:
    config, tensors = draw_weights(1)
    file = PackedFile(tmp_path / "model.packed", "digest")
    Model(engine_config(config), tensors).save(file)
    return config, tensors, file


def test_stale_files_are_refused(
    saved: tuple[TransformerConfig, dict[str, Tensor], PackedFile],
) -> None:
    config, tensors, file = saved
    with pytest.raises(PackedFileError, match="is of other weights"):
        Model(engine_config(config), tensors, packed=PackedFile(file.path, "another"))
    with pytest.raises(PackedFileError, match="is of another config"):
        Model(engine_config(config, suppress_tokens=[3]), tensors, packed=file)
    for name in instruction_sets()[1:]:
        with pytest.raises(PackedFileError, match=f"is not for instruction set {name}"):
            Model(engine_config(config), tensors, 1, name, file)


def test_whatever_is_cut_off_is_missed(
    saved: tuple[TransformerConfig, dict[str, Tensor], PackedFile],
) -> None:
    config, tensors, file = saved
    whole = file.path.read_bytes()
    for size in (0, 1, 100, 4095, 4096, 4160, len(whole) // 2, len(whole) - 64, len(whole) - 1):
        file.path.write_bytes(whole[:size])
        with pytest.raises(PackedFileError, match=r"model\.packed"):
            Model(engine_config(config), tensors, packed=file)
    file.path.write_bytes(whole + bytes(64))
    with pytest.raises(PackedFileError, match="bytes of weights; expected"):
        Model(engine_config(config), tensors, packed=file)


def test_damage_is_found(
    saved: tuple[TransformerConfig, dict[str, Tensor], PackedFile],
) -> None:
    config, tensors, file = saved
    whole = bytearray(file.path.read_bytes())
    draw = np.random.default_rng(0)
    header = [*range(40), 40, 71, 72, 103, 104, 359]
    for at in [*header, *draw.integers(4096, len(whole), 60).tolist(), len(whole) - 1]:
        bit = 1 << int(draw.integers(8))
        whole[at] ^= bit
        file.path.write_bytes(whole)
        with pytest.raises(PackedFileError, match="packed again"):
            Model(engine_config(config), tensors, packed=file)
        whole[at] ^= bit


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    config, tensors = draw_weights(1)
    other, of_other = draw_weights(2)
    Model(engine_config(other), of_other).save(PackedFile(tmp_path / "other", "digest"))
    (tmp_path / "text").write_text("text\n" * 4000)
    (tmp_path / "folder").mkdir()
    for name in ("other", "text", "folder", "missing"):
        with pytest.raises(PackedFileError, match=name):
            Model(engine_config(config), tensors, packed=PackedFile(tmp_path / name, "digest"))


def test_a_file_of_the_same_config_and_other_tensors(tmp_path: Path) -> None:
    # The identity is the caller's word; sizes and the vocabulary's end show what it does not say.
    config, tensors = draw_weights(1)
    file = PackedFile(tmp_path / "model.packed", "digest")
    Model(engine_config(config), tensors).save(file)
    _, whole = draw_weights(1, int8=True)
    with pytest.raises(PackedFileError, match=r"is too (long|short)|beyond the vocabulary"):
        Model(engine_config(config), whole, packed=file)


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    config, tensors = draw_weights(1)
    model = Model(engine_config(config), tensors)
    with pytest.raises(PackedFileError, match="missing"):
        model.save(PackedFile(tmp_path / "missing" / "file", ""))
    (tmp_path / "folder").mkdir()
    with pytest.raises(PackedFileError, match="folder"):
        model.save(PackedFile(tmp_path / "folder", ""))
    with pytest.raises(PackedFileError, match="identity"):
        model.save(PackedFile(tmp_path / "file", "x" * 256))
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_file_cannot_name_tokens_beyond_the_vocabulary(
    saved: tuple[TransformerConfig, dict[str, Tensor], PackedFile],
) -> None:
    """Its sum guards against damage; whoever writes another sum may write anything else."""
    config, tensors, file = saved
    whole = bytearray(file.path.read_bytes())
    ruled_out = np.float32(-np.inf).tobytes()
    place = whole.rindex(2 * ruled_out)
    whole[place : place + 4] = np.float32(1e20).tobytes()
    whole[24:32] = checksum(bytes(whole[4096:])).to_bytes(8, "little")
    file.path.write_bytes(whole)
    with pytest.raises(PackedFileError, match="has tokens beyond the vocabulary"):
        Model(engine_config(config), tensors, packed=file)


def test_a_file_cannot_name_other_types(tmp_path: Path) -> None:
    """Types decide sizes: one that is none is refused, and of another the file has not the size."""
    config, tensors = draw_halves(2, "bfloat16")
    file = PackedFile(tmp_path / "packed", "digest")
    Model(engine_config(config), tensors).save(file)
    whole = file.path.read_bytes()
    line = np.uint32([1, *([0] * 31)]).tobytes()  # of bfloat16, and what a part is filled up with
    places = [at for at in range(4096, len(whole), 64) if whole[at : at + len(line)] == line]
    assert len(places) > 5
    for place in places:
        for other, message in ((3, "has weights of type 3"), (2**32 - 1, "has weights of type 42"),
                               (0, r"is too (short|long)|of type|beyond")):  # fmt: skip
            damaged = bytearray(whole)
            damaged[place : place + 4] = np.uint32(other).tobytes()
            damaged[24:32] = checksum(bytes(damaged[4096:])).to_bytes(8, "little")
            file.path.write_bytes(damaged)
            with pytest.raises(PackedFileError, match=message):
                Model(engine_config(config), tensors, packed=file)


@pytest.mark.skipif("avx2" not in instruction_sets(), reason="no other set pairs groups of weights")
def test_a_file_cannot_name_other_places_of_weights(tmp_path: Path) -> None:
    config, tensors = draw_weights(0, int8=True)
    file = PackedFile(tmp_path / "packed", "digest")
    Model(engine_config(config), tensors, 1, "avx2").save(file)
    whole = file.path.read_bytes()
    groups = -(-config.d_model // 4)

    def is_order(place: int) -> bool:
        pairs, *order = np.frombuffer(whole, np.uint16, 1 + groups, place).tolist()
        return bool(2 * pairs <= groups and sorted(order) == list(range(groups)))

    room = len(whole) - 2 * (1 + groups)
    place = next(place for place in range(4096, room, 64) if is_order(place))
    for word, value in ((0, groups // 2 + 1), (0, 65535), (1, groups), (groups, 65535)):
        damaged = bytearray(whole)
        damaged[place + 2 * word : place + 2 * word + 2] = np.uint16(value).tobytes()
        damaged[24:32] = checksum(bytes(damaged[4096:])).to_bytes(8, "little")
        file.path.write_bytes(damaged)
        with pytest.raises(PackedFileError, match="order of other places"):
            Model(engine_config(config), tensors, 1, "avx2", file)


def checksum(data: bytes) -> int:
    """``Sum`` of engine/store.cpp."""
    odd, most = 0x9E3779B97F4A7C15, (1 << 64) - 1
    lanes = list(range(1, 9))
    for place in range(0, len(data), 64):
        for lane in range(8):
            word = int.from_bytes(data[place + lane * 8 :][:8], "little")
            lanes[lane] = ((lanes[lane] ^ word) * odd + (word >> 29)) & most
    found = 0
    for one in lanes:
        found = ((found ^ one ^ (one >> 31)) * odd + 1) & most
    return found ^ (found >> 32)


def test_tensors_are_checked_beside_a_file(
    saved: tuple[TransformerConfig, dict[str, Tensor], PackedFile],
) -> None:
    config, tensors, file = saved
    del tensors["target_embedding.tokens.weight"]
    with pytest.raises(NativeError, match=r"no tensor 'target_embedding\.tokens\.weight'"):
        Model(engine_config(config), tensors, packed=file)


def _first_tokens(file: PackedFile) -> list[int]:
    config, tensors = draw_weights(1)
    model = Model(engine_config(config), tensors, packed=file)
    return model.generate([[3, 4]], 5, False)[0][0].tolist()


def test_processes_share_a_file(
    saved: tuple[TransformerConfig, dict[str, Tensor], PackedFile],
) -> None:
    *_, file = saved
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        found = pool.map(_first_tokens, [file] * 3)
    assert found == [_first_tokens(file)] * 3


def test_distances_are_numbers_of_a_config_and_take_no_memory(tmp_path: Path) -> None:
    """A bias belongs to a bucket, of which there are few, however far apart keys may lie."""
    sizes = []
    for distance in (20, 1 << 16):
        config = dataclasses.replace(
            draw_config(0),
            relative_positions="buckets_every_layer",
            relative_max_distance=distance,
            relative_buckets=16,
        )
        file = PackedFile(tmp_path / f"{distance}.packed", "")
        engine_model(draw_model(config, 0)).save(file)
        sizes.append(file.path.stat().st_size)
    assert sizes[0] == sizes[1]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_refused_and_not_waited_for(
    saved: tuple[TransformerConfig, dict[str, Tensor], PackedFile],
) -> None:
    config, tensors, file = saved
    file.path.unlink()
    os.mkfifo(file.path)
    with pytest.raises(PackedFileError, match="is no file of packed weights"):
        Model(engine_config(config), tensors, packed=file)
