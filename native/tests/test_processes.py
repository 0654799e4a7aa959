"""Threads and processes around an engine: forks, idleness, several models."""

import os
import time
import warnings

from drawn import draw_sources, draw_weights, engine_config
from tfexport_native import Model

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
