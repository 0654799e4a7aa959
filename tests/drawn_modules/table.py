"""Tables of results: outcomes by production, and bad outcomes by their message."""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence

from tests.drawn_modules.case import OUTCOMES, REFUSED, Result
from tests.drawn_modules.productions import BY_LABEL

_NUMBERS = re.compile(r"\d+")


def production_table(results: Sequence[Result]) -> str:
    """For every production, how often it was drawn, and the outcomes of its modules."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for result in results:
        for label in (*result.labels, "all"):
            counts[label][result.outcome] += 1
    rows: list[tuple[str, ...]] = [("production", "drawn", *OUTCOMES)]
    for label in (*BY_LABEL, "all"):
        outcomes = counts[label]
        rows.append(
            (label, str(outcomes.total()), *(str(outcomes[each] or "") for each in OUTCOMES))
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(
            [
                row[0].ljust(widths[0]),
                *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True)),
            ]
        )
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)


def bad_table(results: Sequence[Result]) -> str:
    """Bad outcomes, the most frequent kinds of messages first, each with its seeds."""
    kinds: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for result in results:
        if result.is_bad:
            kinds[_title(result), _kind(result.message)].append(result)
    lines = []
    for (title, _), found in sorted(kinds.items(), key=lambda item: -len(item[1])):
        seeds = " ".join(str(result.seed) for result in found[:8])
        lines += [f"{len(found)} × {title}: seeds {seeds}", f"    {found[0].message[:300]}"]
    return "\n".join(lines) or "nothing bad"


def summary(results: Sequence[Result]) -> str:
    """How many there are of each outcome, and the seconds of a case."""
    outcomes = Counter(_title(result) for result in results)
    said = ", ".join(f"{count} {name}" for name, count in outcomes.most_common())
    seconds = sum(result.seconds for result in results) / max(len(results), 1)
    return f"{len(results)} cases: {said}; {seconds:.1f} s a case"


def _title(result: Result) -> str:
    if result.outcome == REFUSED:
        return "refused as expected" if result.expected else "refused, though no production says so"
    return result.outcome


def _kind(message: str) -> str:
    """A message without what differs between modules."""
    return _NUMBERS.sub("N", message)[:60]
