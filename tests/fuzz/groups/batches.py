"""Batches, compared with each of their sentences alone."""

from functools import cache
from pathlib import Path
from random import Random

from tests.fuzz.bundles import warm_up
from tests.support.batches import Batches


def prepare(bundle: Path) -> None:
    """Open the bundle, with and without a vocabulary map."""
    warm_up(bundle)
    _batches(bundle)


def run(rng: Random, scratch: Path, bundle: Path) -> None:
    """Decode a batch, and each sentence of it alone."""
    batches = _batches(bundle)
    draw = rng.choice([batches.draw, batches.draw_forced])
    drawn = draw(rng.randrange(2**32))
    differences = batches.differences(drawn)
    assert not differences, f"{drawn}: {differences}"


@cache
def _batches(bundle: Path) -> Batches:
    return Batches(bundle)
