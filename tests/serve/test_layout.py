"""How a model's threads share its rows."""

from pathlib import Path

import pytest

from tfexport.runtime.parallel.thread_layout import ThreadLayout
from tfexport.serve import Settings, models


@pytest.mark.parametrize(
    ("engine", "threads", "wanted"),
    [
        ("onnxruntime", 1, (1, 1)),
        ("onnxruntime", 6, (6, 1)),
        ("native", 1, (1, 1)),
        ("native", 4, (1, 4)),
        ("native", 5, (2, 2)),
        ("native", 32, (8, 4)),
    ],
)
def test_native_threads_share_a_batch_and_others_have_their_own(
    monkeypatch: pytest.MonkeyPatch,
    tiny_bundle: Path,
    engine: str,
    threads: int,
    wanted: tuple[int, int],
) -> None:
    monkeypatch.setattr(models, "choose_engine", lambda manifest, asked: (engine, ""))
    workers, each = wanted
    expected = ThreadLayout(workers, threads=each)
    assert models.layout_of(tiny_bundle, Settings(threads=threads)) == expected
