"""Rows whose neighbours come and go: each gives what it gives alone, bit for bit.

``--batches N`` draws more of them.
"""

import dataclasses
import random
import threading
from typing import Any

import numpy as np
import pytest
from drawn import draw_config, draw_model, draw_sources, draw_weights, engine_config, engine_model
from numpy.typing import NDArray
from tfexport_native import CancelledError, Model, NativeError, Run, instruction_sets, library
from tfexport_native import model as native_model

from tfexport.model_src import TransformerConfig

MODELS = 8  # a batch is of one of them
Floats = NDArray[np.float32]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "drawn" in metafunc.fixturenames:
        metafunc.parametrize("drawn", range(MODELS))


def drawn_model(number: int) -> tuple[TransformerConfig, Model]:
    config, tensors = draw_weights(100 + number, int8=number % 2 == 1)
    name = instruction_sets()[number // 2 % len(instruction_sets())]
    return config, Model(engine_config(config), tensors, 1 + number % 3, name)


def test_rows_do_not_notice_their_neighbours(drawn: int, request: pytest.FixtureRequest) -> None:
    config, model = drawn_model(drawn)
    for seed in range(request.config.getoption("--batches") // MODELS):
        run_batch(config, model, seed)


def run_batch(config: TransformerConfig, model: Model, seed: int) -> None:
    """Rows enter, step together, are repeated, moved and dropped; then each is played alone."""
    draw = random.Random(seed)
    batch = model.new_batch()
    # Of each row its source, its tokens, and logits by how many tokens there were.
    rows: list[tuple[list[int], list[int], dict[int, Floats]]] = []
    gone: list[tuple[list[int], list[int], dict[int, Floats]]] = []
    longest = (config.longest or 24) - 1
    for _ in range(draw.randint(4, 12)):
        act = draw.random()
        if not rows or (act < 0.25 and len(rows) < 9):
            sources = draw_sources(config, draw.randrange(1 << 30))[: draw.randint(1, 5)]
            batch.enter(draw.choice([sources, model.encode(sources)]))
            rows += [(source, [], {}) for source in sources]
        elif act < 0.45:
            kept = [draw.randrange(len(rows)) for _ in range(draw.randint(0, len(rows)))]
            batch.select(kept)
            gone += [row for i, row in enumerate(rows) if i not in kept]
            rows = [(rows[i][0], list(rows[i][1]), dict(rows[i][2])) for i in kept]
        each = draw.choice([1, 1, 1, 2, 5])
        if not rows or any(len(row[1]) + each > longest for row in rows):
            continue
        tokens = np.array(
            [[draw.randrange(model.vocab_size) for _ in range(each)] for _ in rows], np.int32
        )
        logits = np.empty((len(rows), each, model.vocab_size), np.float32)
        best = np.empty(len(rows), np.int32)
        batch.step(tokens, logits=logits, best=best)
        np.testing.assert_array_equal(best, logits[:, -1].argmax(-1))
        for i, (_, had, found) in enumerate(rows):
            for j in range(each):
                had.append(int(tokens[i, j]))
                found[len(had)] = logits[i, j]
    for source, had, found in gone + rows:
        if had:
            alone = play_alone(model, source, had)
            for count, values in found.items():
                np.testing.assert_array_equal(values, alone[count - 1])


def play_alone(model: Model, source: list[int], tokens: list[int]) -> Floats:
    batch = model.new_batch()
    batch.enter([source])
    found = np.empty((1, len(tokens), model.vocab_size), np.float32)
    for i, token in enumerate(tokens):
        logits = np.empty((1, 1, model.vocab_size), np.float32)
        batch.step(np.array([[token]], np.int32), logits=logits)
        found[0, i] = logits[0, 0]
    return found[0]


@pytest.mark.parametrize("sharing", ["columns", "rows"])
def test_rows_do_not_notice_how_threads_share_them(
    drawn: int, sharing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TFEXPORT_NATIVE_SHARING", sharing)
    config, model = drawn_model(drawn)
    for seed in range(4):
        run_batch(config, model, 1000 + seed)
    # More tokens than the encoder takes at a time.
    sources = [source for seed in range(12) for source in draw_sources(config, seed)]
    assert sum(map(len, sources)) > 300

    def found(model: Model) -> list[NDArray[Any]]:
        _, _, scores = generated = model.generate(sources, 15, True)
        assert scores is not None
        beams = model.beam(sources, 3, 2, 8)
        return [*generated[:2], scores, *beams, *model.encode(sources)]

    shared = found(model)
    monkeypatch.setenv("TFEXPORT_NATIVE_SHARING", "serial")
    _, model = drawn_model(drawn)
    for one, other in zip(shared, found(model), strict=True):
        np.testing.assert_array_equal(one, other)


def test_an_unknown_way_to_share_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFEXPORT_NATIVE_SHARING", "thread")
    with pytest.raises(NativeError, match='SHARING is "thread"; expected serial, columns or'):
        drawn_model(0)


def test_searches_in_one_call_do_not_notice_their_neighbours(drawn: int) -> None:
    config, model = drawn_model(drawn)
    sources = draw_sources(config, drawn) + draw_sources(config, drawn + 1)
    together, counts, scores = model.generate(sources, 15, True)
    assert scores is not None
    beams = model.beam(sources, 3, 2, 8)
    for i, source in enumerate(sources):
        alone, count, score = model.generate([source], 15, True)
        assert score is not None
        assert counts[i] == count[0]
        np.testing.assert_array_equal(together[i, : counts[i]], alone[0, : count[0]])
        assert scores[i] == score[0]
        single = model.beam([source], 3, 2, 8)
        assert beams.steps[i] == single.steps[0]
        for found, expected in zip(beams[:3], single[:3], strict=True):
            np.testing.assert_array_equal(found[: len(expected), i], expected[:, 0])


def test_greedy_search_in_one_call_is_that_by_steps(drawn: int) -> None:
    config, model = drawn_model(drawn)
    sources = draw_sources(config, drawn + 2)
    sequences, counts, _ = model.generate(sources, 15, False)
    batch, rows = model.new_batch(), list(range(len(sources)))
    batch.enter(sources)
    found: list[list[int]] = [[] for _ in sources]
    tokens = np.full((len(rows), 1), config.special_ids.decoder_start, np.int32)
    for _ in range(15):
        best = np.empty(len(rows), np.int32)
        batch.step(tokens, best=best)
        for row, token in zip(rows, best.tolist(), strict=True):
            found[row].append(token)
        kept = [i for i, token in enumerate(best) if token != config.eos_id]
        batch.select(kept)
        rows, tokens = [rows[i] for i in kept], best[kept, None]
        if not rows:
            break
    assert [sequences[i, : counts[i]].tolist() for i in range(len(sources))] == found


@pytest.mark.parametrize("forced", [(-1, -1), (5, 4)])
def test_greedy_search_in_one_call_is_that_by_runs(drawn: int, forced: tuple[int, int]) -> None:
    config, tensors = draw_weights(100 + drawn, int8=drawn % 2 == 1)
    rules = dict(zip(("first_token", "last_token"), forced, strict=True))
    model = Model(engine_config(config, **rules), tensors, 1 + drawn % 3)
    draw, batch, most = random.Random(drawn), model.new_batch(), 15
    waiting = [
        (source, draw.randint(2, most), draw.choice([0, 0, 3, 20]))
        for source in draw_sources(config, drawn + 2) * 3
    ]
    # Of each row its source, how many tokens it may get and has to, and those that it got.
    rows: list[tuple[list[int], int, int, list[int]]] = []
    done: list[tuple[list[int], int, int, list[int]]] = []
    while waiting or rows:
        entering = [waiting.pop() for _ in range(draw.randint(not rows, 3)) if waiting]
        if entering:
            batch.enter([source for source, _, _ in entering])
            rows += [(*row, []) for row in entering]
        start = config.special_ids.decoder_start
        tokens = [found[-1] if found else start for *_, found in rows]
        left = [limit - len(found) for _, limit, _, found in rows]
        owed = [max(0, least - len(found)) for *_, least, found in rows]
        run = Run(config.eos_id, *forced, steps=draw.randint(1, 6), owed=owed)
        chosen, counts = batch.run(tokens, left, run)
        for (*_, found), made, count in zip(rows, chosen, counts, strict=True):
            found += made[:count].tolist()
        ended = [found[-1] == config.eos_id or len(found) == limit for _, limit, _, found in rows]
        done += [row for row, over in zip(rows, ended, strict=True) if over]
        rows = [row for row, over in zip(rows, ended, strict=True) if not over]
        assert batch.rows == len(rows)
    for source, limit, least, found in done:
        sequences, counts, _ = model.generate([source], limit, False, min_length=least)
        assert sequences[0, : counts[0]].tolist() == found


def test_a_run_ends_when_it_is_wanted() -> None:
    config, model = drawn_model(2)
    never = config.target_vocab_size  # the token of no column
    start, sources = config.special_ids.decoder_start, draw_sources(config, 3)[:2] * 2
    wake = np.ones(1, np.int32)

    def counts_of(left: list[int], run: Run) -> list[int]:
        batch = model.new_batch()
        batch.enter(sources[: len(left)])
        _, counts = batch.run([start] * len(left), left, run)
        assert batch.rows == sum(n > count for n, count in zip(left, counts, strict=True))
        return [int(count) for count in counts]

    run = Run(never, steps=7)
    assert counts_of([9, 9], run) == [7, 7]
    assert counts_of([9, 2], run) == [7, 2]
    assert counts_of([9, 9], run._replace(seconds=0.0)) == [1, 1]
    assert counts_of([9, 9], run._replace(wake=wake)) == [1, 1]
    assert counts_of([9, 9], run._replace(wake=np.zeros(1, np.int32))) == [7, 7]
    assert counts_of([9, 3, 2], run._replace(wake=wake, enough=1)) == [2, 2, 2]
    assert counts_of([9, 3, 2], run._replace(wake=wake, enough=2)) == [3, 3, 2]
    for wrong in ({"steps": 0}, {"first": never}, {"last": never}):
        with pytest.raises(NativeError):
            counts_of([9], run._replace(**wrong))
    with pytest.raises(NativeError, match="no token"):
        counts_of([0], run)


def test_beam_search_in_one_call_is_that_by_steps(drawn: int) -> None:
    config, model = drawn_model(drawn)
    source, beams, most = draw_sources(config, drawn + 3)[2], 3, 8
    tokens, parents, _, _ = model.beam([source], beams, 3, most)
    batch = model.new_batch()
    batch.enter([source])
    sums, last = np.zeros(1), np.array([[config.special_ids.decoder_start]], np.int32)
    for step in range(len(tokens)):
        logits = np.empty((len(sums), 1, model.vocab_size), np.float32)
        batch.step(last, logits=logits)
        wide = logits[:, 0].astype(np.float64)
        highest = wide.max(-1, keepdims=True)
        totals = wide - highest - np.log(np.exp(wide - highest).sum(-1, keepdims=True))
        totals += sums[:, None]
        order = np.argsort(-totals, axis=None, kind="stable")[: 2 * beams]
        gap = np.diff(-np.sort(-totals, axis=None)[: 2 * beams + 1])
        if np.abs(gap).min() < 1e-5:
            break  # a near tie may go either way
        row, token = np.divmod(order, model.vocab_size)
        np.testing.assert_array_equal(tokens[step, 0], token)
        np.testing.assert_array_equal(parents[step, 0], row)
        going_on = np.flatnonzero(token != config.eos_id)[:beams]
        batch.select(row[going_on])
        sums = totals[row[going_on], token[going_on]]
        last = token[going_on, None].astype(np.int32)


def test_ties_go_to_the_lower_id() -> None:
    config = draw_config(3)
    model = draw_model(config, 3)
    with_ties = model.output_proj
    for parameter in with_ties.parameters():
        parameter.data[5:] = parameter.data[5]
    engine = engine_model(model)
    batch = engine.new_batch()
    batch.enter(draw_sources(config, 3))
    logits = np.empty((5, 1, engine.vocab_size), np.float32)
    best = np.empty(5, np.int32)
    start = np.full((5, 1), config.special_ids.decoder_start, np.int32)
    batch.step(start, logits=logits, best=best)
    assert (best <= 5).all()
    tokens, _, _, _ = engine.beam(draw_sources(config, 3), 4, 1, 1)
    expected = np.argsort(-logits[:, 0], -1, kind="stable")[:, :8]
    np.testing.assert_array_equal(tokens[0], expected)


def test_a_call_can_be_cancelled() -> None:
    config, model = drawn_model(0)
    sources, flag = draw_sources(config, 0), np.zeros(1, np.int32)
    expected = model.generate(sources, 12, False, flag)[0]
    flag[0] = 1
    with pytest.raises(CancelledError):
        model.generate(sources, 12, False, flag)
    with pytest.raises(CancelledError):
        model.beam(sources, 2, 2, 12, flag)
    np.testing.assert_array_equal(model.generate(sources, 12, False)[0], expected)


def test_a_running_call_can_be_cancelled_from_another_thread() -> None:
    config = draw_config(5)
    rules = {"suppress_tokens": [config.eos_id], "max_positions": 0}
    tensors = draw_weights(5)[1]
    if config.positions != "none":
        rules.pop("max_positions")
    model = Model(engine_config(config, **rules), tensors)
    flag = np.zeros(1, np.int32)
    timer = threading.Timer(0.05, flag.fill, (1,))
    timer.start()

    def run() -> None:
        while True:
            model.generate([[3]] * 50, 20, False, flag)

    with pytest.raises(CancelledError):
        run()


def test_a_batch_is_as_it_was_after_a_call_that_is_refused() -> None:
    config, model = drawn_model(2)
    sources = draw_sources(config, 2)
    one, other = model.new_batch(), model.new_batch()
    found = []
    for batch in (one, other):
        batch.enter(sources)
        if batch is one:
            with pytest.raises(NativeError, match="is empty"):
                batch.enter([[1], []])
            with pytest.raises(NativeError, match="has id"):
                batch.enter([[1], [10**12]])
            with pytest.raises(NativeError, match="row 5 of 5"):
                batch.select([0, 5])
            with pytest.raises(NativeError, match="has id -1"):
                batch.step(np.full((5, 1), -1))
            room, tokens = np.empty((5, 1, 1), np.float32), np.ones((5, 1), np.int32)
            with pytest.raises(NativeError, match="vocabulary does not have"):
                batch.step(tokens, logits=room, columns=np.array([-1]))
        logits = np.empty((5, 1, model.vocab_size), np.float32)
        batch.step(np.ones((5, 1), np.int32), logits=logits)
        found.append(logits)
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("wrong", [2**32 + 5, 5.9, -(2**32) + 5])
def test_numbers_are_not_taken_for_others(wrong: float) -> None:
    _, model = drawn_model(0)
    batch = model.new_batch()
    batch.enter([[5]])
    for call in (
        lambda: batch.step(np.array([[wrong]])),
        lambda: batch.select([wrong]),  # type: ignore[list-item]
        lambda: batch.enter([[wrong]]),  # type: ignore[list-item]
    ):
        with pytest.raises(NativeError):
            call()
    assert batch.rows == 1


def test_room_for_attention_is_that_of_the_model() -> None:
    _, model = drawn_model(0)
    batch = model.new_batch()
    batch.enter([[5]])
    layers, heads = model.attention_shape
    for wrong in ((layers - 1, heads), (layers, heads + 1)):
        with pytest.raises(NativeError, match="attention"):
            batch.step(np.array([[4]]), attention=np.zeros((1, *wrong, 1, 1), np.float32))


def test_threads_may_share_a_model() -> None:
    config, model = drawn_model(1)
    sources = [draw_sources(config, seed) for seed in range(6)]
    expected = [model.generate(some, 12, False)[0].tolist() for some in sources]
    found: dict[int, list[list[list[int]]]] = {}

    def run(number: int) -> None:
        found[number] = [model.generate(some, 12, False)[0].tolist() for some in sources]

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[number] for number in range(4)] == [expected] * 4


@pytest.mark.parametrize("rules", [{}, {"last_token": 5}], ids=["plain", "forced last token"])
@pytest.mark.parametrize("seed", range(8))
def test_room_grows_with_what_is_decoded(
    seed: int, rules: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, tensors = draw_weights(seed)
    model = Model(engine_config(config, **rules), tensors)
    sources, beams = draw_sources(config, seed), 2
    found = []
    for room in (1024, 2):
        monkeypatch.setattr(native_model, "_FIRST_ROOM", room)
        monkeypatch.setattr(native_model, "_GROWTH", 2)
        for most in (1, 2, 5, 19):
            for scored in (True, False):
                found.append([*map(np.asarray, model.generate(sources, most, scored))])
            found.append([*model.beam(sources, beams, 2, most)])
    half = len(found) // 2
    for one, other in zip(found[:half], found[half:], strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_bound_that_is_none_takes_no_memory() -> None:
    config = dataclasses.replace(draw_config(0), positions="none")
    module, source = draw_model(config, 0), draw_sources(config, 1)[-1:]
    tokens = engine_model(module).generate(source, 4, False)[0][0]
    model = engine_model(module, {"eos_id": int(tokens[-1])})  # so that it ends
    most = 2**31 - 1
    for scored in (True, False):
        plain, unbounded = (model.generate(source * 32, bound, scored) for bound in (9, most))
        for one, other in zip(plain, unbounded, strict=True):
            np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
    for one, other in zip(model.beam(source, 1, 1, 9), model.beam(source, 1, 1, most), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_library_of_another_interface_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    found = library.LIBRARY.tfn_version()
    assert found == 10
    monkeypatch.setattr(library, "_VERSION", found - 1)
    with pytest.raises(ImportError, match="has interface 10; this package needs 9"):
        library._load()


@pytest.mark.parametrize("int8", [False, True])
def test_more_columns_than_a_team_counts_at_a_time(
    int8: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TFEXPORT_NATIVE_SHARING", "columns")
    config, tensors = draw_weights(4, int8)
    for threads in (1, 3):
        model = Model(engine_config(config), tensors, threads)
        sources = draw_sources(config, 0)
        columns = np.random.default_rng(0).integers(0, model.vocab_size, 200_000).astype(np.int32)
        tokens = np.full((len(sources), 1), config.bos_id, np.int32)
        found = []
        for chosen in (None, columns):
            batch = model.new_batch()
            batch.enter(sources)
            width = model.vocab_size if chosen is None else len(chosen)
            logits = np.full((len(sources), 1, width), np.nan, np.float32)
            batch.step(tokens, logits=logits, columns=chosen)
            found.append(logits)
        np.testing.assert_allclose(found[1], found[0][:, :, columns], rtol=0, atol=1e-5)
