"""Which configuration of a system counts, and how systems then compare."""

import math
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.configurations import OURS, is_peer

NEAR = 1.15  # times the fastest's seconds: a runner-up that noise may have made slower
FAR = 1.6  # times the fastest's seconds: no noise makes up for that
# Seconds of a run that a neighbour's few time slices can make several times as long: all rounds are
# made, whatever was found so far, or chance chooses among one thread, two threads and two workers.
BRIEF = 0.25
ROUNDS = 3  # of choosing among brief runs
SLOW = 3.0  # seconds of one run, of which two have to do for choosing
PATIENCE = 8.0  # seconds of measuring for one configuration and batch, if that is enough runs
LEAST = 3  # runs, however long they take
LEAST_BRIEF = 7  # of brief ones


def may_win(seconds: list[float], fastest: float) -> bool:
    """Whether another run of a configuration could make it the fastest, after these."""
    least = min(seconds, default=0.0)
    if least <= BRIEF:
        return len(seconds) < ROUNDS
    return least <= FAR * fastest and (len(seconds) < 2 or least <= SLOW)


def finalists(seconds: dict[str, float]) -> list[str]:
    """The fastest configuration and, if it is near, the next; seconds by configuration."""
    order = sorted(seconds, key=seconds.__getitem__)
    return [name for name in order[:2] if seconds[name] <= NEAR * seconds[order[0]]]


def runs_for(seconds: float, most: int) -> int:
    """How often to run what takes so long: as often as patience allows, at least three times."""
    if seconds <= BRIEF:
        return max(LEAST_BRIEF, most)
    return max(min(LEAST, most), min(most, int(PATIENCE / seconds)))


def best(configurations: dict[str, dict[str, Any]]) -> str:
    """The configuration with the smallest median in the final; figures by configuration."""
    final = {name: figures for name, figures in configurations.items() if "seconds" in figures}
    return min(final, key=lambda name: final[name]["seconds"])


def seconds_of(result: dict[str, Any], system: str) -> float | None:
    """A system's best median in one cell, or None where it did not run."""
    found = result["systems"].get(system)
    if found is None:
        return None
    seconds: float = found["configurations"][found["best"]]["seconds"]
    return seconds


def best_peer(result: dict[str, Any]) -> str | None:
    """The fastest peer of a cell, each in its best configuration."""
    times = {
        name: seconds_of(result, name) or math.inf
        for name in result["systems"]
        if is_peer(name)
    }  # fmt: skip
    return min(times, key=times.__getitem__, default=None)


def ratio(result: dict[str, Any], system: str | None) -> float | None:
    """How many times as fast as a system tfexport is, best against best; below 1 it is slower."""
    ours = seconds_of(result, OURS[result["weights"]])
    theirs = None if system is None else seconds_of(result, system)
    return None if ours is None or theirs is None else theirs / ours


def one_thread_ratio(result: dict[str, Any], system: str) -> float | None:
    """The same with one thread each, by the fastest runs while configurations were chosen."""

    def alone(_: str, figures: dict[str, Any]) -> bool:
        return bool(figures["cores"] == 1)

    ours = _least(result, OURS[result["weights"]], alone)
    theirs = _least(result, system, alone)
    return None if ours is None or theirs is None else theirs / ours


def onnxruntime_ratio(result: dict[str, Any], system: str) -> float | None:
    """The same without the native engine, by the fastest runs while configurations were chosen."""
    ours = _least(result, OURS[result["weights"]], lambda name, _: name.startswith("onnxruntime"))
    theirs = _least(result, system, lambda *_: True)
    return None if ours is None or theirs is None else theirs / ours


def _least(
    result: dict[str, Any], system: str, wanted: Callable[[str, dict[str, Any]], bool]
) -> float | None:
    found = result["systems"].get(system, {"configurations": {}})["configurations"]
    return min(
        (f["least_when_choosing"] for name, f in found.items() if wanted(name, f)), default=None
    )


def geometric_mean(ratios: Iterable[float | None]) -> float | None:
    """Of the ratios that there are."""
    logs = [math.log(value) for value in ratios if value is not None]
    return math.exp(sum(logs) / len(logs)) if logs else None
