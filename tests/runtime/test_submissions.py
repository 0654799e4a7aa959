"""Asynchronous calls."""

import threading
from concurrent.futures import Future
from pathlib import Path

import pytest

from tests.support.tiny_rows import rows_of, tokens
from tfexport.errors import InputError
from tfexport.runtime import TranslationResult, Translator


def test_asynchronous_submissions_from_many_threads(tiny_bundle: Path) -> None:
    with Translator(tiny_bundle, threads=1, workers=2, queue_size=2) as translator:
        sets = [rows_of(9, seed) for seed in range(8)]
        expected = [tokens(translator.generate(rows, max_length=9, beam_size=2)) for rows in sets]
        futures: list[Future[list[TranslationResult]] | None] = [None] * 8

        def submit(slot: int) -> None:
            futures[slot] = translator.generate(
                sets[slot], max_length=9, beam_size=2, batch_size=3, asynchronous=True
            )

        threads = [threading.Thread(target=submit, args=(slot,)) for slot in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = [future.result(timeout=60) for future in futures if future is not None]
        assert [tokens(results) for results in found] == expected
        assert translator.generate([], asynchronous=True).result(timeout=60) == []
        with pytest.raises(InputError, match="row 0"):
            translator.generate([[99]], asynchronous=True)


def test_an_error_of_a_worker_reaches_its_future(tiny_bundle: Path) -> None:
    def fail(step: object) -> bool:
        raise RuntimeError("stop here")

    with Translator(tiny_bundle, threads=1) as translator:
        future = translator.generate([[5]], callback=fail, asynchronous=True)
        with pytest.raises(RuntimeError, match="stop here"):
            future.result(timeout=60)
        assert translator.generate([[5]], max_length=2, asynchronous=True).result(timeout=60)
