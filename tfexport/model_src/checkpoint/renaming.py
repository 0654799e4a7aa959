"""Application of rename and ignore tables to keys, with a time limit.

A regular expression may take exponential time, and Python cannot interrupt one. So tables are
applied in a process of their own, which runs this file on JSON and is killed after a time limit.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence

MAX_SECONDS = 1.5
MAX_KEY_LENGTH = 512


class SlowPatternError(ValueError):
    """A table took longer than ``MAX_SECONDS``."""


def rename_within_time(
    keys: Iterable[str], rename: Sequence[tuple[str, str]], ignore: Sequence[str]
) -> tuple[dict[str, str | None], list[str]]:
    """``rename_keys`` with a time limit.

    Raises:
        SlowPatternError: it took longer.
    """
    if not (rename or ignore) or not sys.executable:
        return rename_keys(keys, rename, ignore)
    task = json.dumps([list(keys), list(rename), list(ignore)])
    command = [sys.executable, "-I", "-S", __file__]
    try:
        done = subprocess.run(
            command, input=task, capture_output=True, timeout=MAX_SECONDS, encoding="ascii"
        )
    except subprocess.TimeoutExpired:
        raise SlowPatternError from None
    if done.returncode:  # e.g. a pattern that takes more memory or stack than there is
        raise SlowPatternError
    names, problems = json.loads(done.stdout)
    return names, problems


def rename_keys(
    keys: Iterable[str], rename: Sequence[tuple[str, str]], ignore: Sequence[str]
) -> tuple[dict[str, str | None], list[str]]:
    """Every key with its name after the first pattern that matches it; None if it is ignored.

    A key is ignored where a pattern matches it as it is or as it is renamed.

    Returns:
        The names, and sentences about replacements that name no group.
    """
    names: dict[str, str | None] = {}
    problems: list[str] = []
    for key in keys:
        names[key] = name = key
        for pattern, replacement in rename:
            if re.search(pattern, key):
                try:
                    names[key] = name = re.sub(pattern, replacement, key, count=1)
                except (re.error, IndexError) as error:
                    problems.append(f"{replacement!r} for {pattern!r}: {error}")
                break
        if len(name) > MAX_KEY_LENGTH:
            problems.append(f"{pattern!r} makes a name of {len(name)} characters")
            names[key] = name = key
        if any(re.search(pattern, key) or re.search(pattern, name) for pattern in ignore):
            names[key] = None
    return names, sorted(set(problems))


if __name__ == "__main__":
    json.dump(rename_keys(*json.load(sys.stdin)), sys.stdout)
