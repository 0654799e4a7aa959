"""Threads and processes around an engine: forks, idleness, several models."""

import os
import resource
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from drawn import draw_sources, draw_weights, engine_config
from tfexport_native import Batch, Model, NativeError

from tfexport.model_src import TransformerConfig


def make(seed: int, threads: int) -> tuple[TransformerConfig, Model]:
    config, tensors = draw_weights(seed)
    return config, Model(engine_config(config), tensors, threads)


def test_a_fork_decodes_as_its_parent_does() -> None:
    config, model = make(4, 3)
    sources = draw_sources(config, 4)
    expected = model.generate(sources, 12, False)[0].tolist()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # forks of processes with threads are frowned upon
        child = os.fork()
    if not child:
        same = all(model.generate(sources, 12, False)[0].tolist() == expected for _ in range(3))
        del model  # without waiting for threads that it does not have
        os._exit(0 if same else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert model.generate(sources, 12, False)[0].tolist() == expected


def test_threads_sleep_between_calls() -> None:
    config, model = make(6, 4)
    for _ in range(5):
        model.generate(draw_sources(config, 6), 12, False)
    before = time.process_time()
    time.sleep(0.4)
    # Three threads that spin would take their share of all of it.
    assert time.process_time() - before < 0.1


def test_models_of_a_process_do_not_disturb_each_other() -> None:
    models = [make(seed, 1 + seed % 3) for seed in range(6)]
    first = [model.generate(draw_sources(config, 1), 9, False) for config, model in models]
    again = [model.generate(draw_sources(config, 1), 9, False) for config, model in models]
    for (tokens, *_), (same, *_) in zip(first, again, strict=True):
        assert tokens.tolist() == same.tolist()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads Linux's own files")
def test_a_batch_is_as_it_was_when_memory_ends(pytestconfig: pytest.Config) -> None:
    """In a process of its own, which may have little more than it has."""
    if pytestconfig.getoption("--sanitizers"):
        pytest.skip("AddressSanitizer ends a process whose memory ends")
    config, model = make(4, 1)
    source = draw_sources(config, 4)[0]
    batch, other = model.new_batch(), model.new_batch()
    for one in (batch, other):
        one.enter([source, source])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if not child:
        os._exit(0 if _survives(batch, other, model.vocab_size) else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def _survives(batch: Batch, other: Batch, size: int) -> bool:
    has = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    most = has + (150 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    try:
        batch.select([0] + [1] * 6_000_000)
    except (NativeError, MemoryError):
        found = np.zeros((2, 2, 1, size), np.float32)
        for one, logits in zip((batch, other), found, strict=True):
            one.step(np.array([[4], [5]]), logits=logits)
        return bool((found[0] == found[1]).all())
    return False
