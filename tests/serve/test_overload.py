"""Many requests at once for a server that takes few; `make overload` has minutes of it."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.serve.overload import Case, Load, Outcome, make_cases
from tests.serve.servers import Server, serving

TEXTS = [f"w{4 + i % 9} w{5 + i % 7}{' w9' * (i % 5)}" for i in range(50)]


async def flood(server: Server, cases: Sequence[Case], count: int) -> Outcome:
    load, outcome = Load(server, cases), Outcome()
    await asyncio.gather(*(load.ask(outcome) for _ in range(count)))
    await load.close()
    return outcome


@pytest.mark.slow
def test_every_answer_is_right_or_says_when_to_come_again(
    tiny_bundle: Path, tmp_path: Path
) -> None:
    cases = make_cases(tiny_bundle, TEXTS)
    with serving(tmp_path, tiny_bundle, "--slots", 4, "--max-queue", 8) as server:
        outcome = asyncio.run(flood(server, cases, 1000))
        assert not outcome.bad, outcome.counts
        assert outcome.sent == 1000
        assert outcome.counts["right"] >= 8  # all may be there before a slot has taken one
        assert outcome.counts["refused"] > 0
        after = asyncio.run(flood(server, cases, 1))
        assert after.counts == {"right": 1}
        counted = server.figure("tfexport_requests_total", route="/v1/translate", code="503")
        assert counted == outcome.counts["refused"]
        assert "Traceback" not in server.log.read_text()
        assert server.end() == 0
