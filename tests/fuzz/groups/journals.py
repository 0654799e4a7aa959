"""Journals of unfinished outputs, and the outputs themselves."""

import json
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.bundles import command, translator_of, warm_up
from tests.fuzz.mutate import allowed, dumps, mutate_bytes, mutate_json
from tests.support.paths import VERSION_1
from tfexport.runtime.files.resumable import progress_path

LINES = b"w4 w5\n\nw6 w7\n\xff\nw8\nw9 w4\nw10\n"


class _StopError(Exception):
    """Ends a run in the middle, as a kill would."""


def prepare(bundle: Path) -> None:
    """Import what the command imports."""
    warm_up(bundle)


def run(rng: Random, scratch: Path, bundle: Path) -> None:
    """Go on with an output that was begun, and then changed."""
    source, output = scratch / "in.txt", scratch / "out.txt"
    source.write_bytes(LINES)
    several = rng.choice([1, 2])
    options = ["--max-length=2", "--batch-size=2"]
    options += ["--beam-size=2", "--num-hypotheses=2"] if several == 2 else []
    _begin(rng, source, output, several)
    journal = progress_path(output)
    if journal.exists() and rng.random() < 0.8:
        _change_journal(rng, journal)
    if output.exists() and rng.random() < 0.4:
        output.write_bytes(mutate_bytes(rng, output.read_bytes()))
    if rng.random() < 0.1:
        rng.choice([journal, output]).unlink(missing_ok=True)
    keywords: dict[str, Any] = {
        "max_length": 2,
        "batch_size": 2,
        "beam_size": several,
        "num_hypotheses": several,
    }
    if rng.random() < 0.6:
        with allowed():
            translator_of(VERSION_1).translate_file(source, output, resume=True, **keywords)
    else:
        command("translate", VERSION_1, source, "-o", output, "--resume", *options)


def _begin(rng: Random, source: Path, output: Path, several: int) -> None:
    from tfexport.runtime.files.line_stream import LineFormat, LineTask
    from tfexport.runtime.files.resumable import translate_file

    engine = translator_of(VERSION_1).engine
    resolved, _ = engine.resolver.resolve({
        "max_length": 2, "batch_size": 2, "beam_size": several, "num_hypotheses": several,
        "return_scores": False,
    })  # fmt: skip
    left = rng.randrange(9)

    def tell(line: object) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise _StopError

    try:
        translate_file(
            engine,
            source,
            output,
            LineTask(resolved, LineFormat(num_hypotheses=several)),
            on_result=tell,
        )
    except _StopError:
        return


def _change_journal(rng: Random, journal: Path) -> None:
    content = journal.read_bytes()
    if rng.random() < 0.3:
        journal.write_bytes(mutate_bytes(rng, content))
        return
    notes = [json.loads(line) for line in content.splitlines()]
    notes.append({"bad": rng.randrange(9)})
    for _ in range(rng.choice([1, 1, 2])):
        # Most of all the notes: what a head says is only compared.
        at = rng.randrange(len(notes))
        notes[at] = mutate_json(rng, notes[at]) if isinstance(notes[at], dict) else notes[at]
    text = "\n".join(dumps(note) for note in notes) + "\n"
    if rng.random() < 0.1:
        text = text.split("\n")[0] + "\n" + "[" * rng.choice([1, 100_000]) + "\n"
    journal.write_text(text)
