"""What ``tfexport inspect`` says of a checkpoint: a summary, config, keys, and problems last."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tfexport.cli.console import human_size
from tfexport.cli.spelling import spell
from tfexport.errors import Message, Option

if TYPE_CHECKING:
    from tfexport.model_src.checkpoint.read import Examination


def checkpoint_facts(found: "Examination") -> dict[str, Any]:
    """All that is known of a checkpoint, as JSON values."""
    checkpoint = found.checkpoint
    values = checkpoint.config.to_dict()
    missing = [key for key, origin in checkpoint.origins.items() if origin == "missing"]
    return {
        "path": checkpoint.name,
        "layout": checkpoint.layout,
        "parameters": _parameters(found),
        "config": {
            key: {
                "value": None if key in missing else value,
                "origin": _spelled_origin(checkpoint.origins.get(key, "assumed")),
            }
            for key, value in values.items()
        },
        "keys": {key: list(targets) for key, targets in checkpoint.key_report.items()},
        "notes": [Message(note).spelled(spell) for note in found.notes],
        "problems": [
            Message(problem).spelled(spell) for problem in found.problems + found.config_problems
        ],
    }


def _spelled_origin(origin: str) -> str:
    return spell(Option(origin)) if origin == "settings" else origin


def _parameters(found: "Examination") -> int:
    """Trained values; position tables of a fixed kind are not trained, tied ones count once."""
    checkpoint = found.checkpoint
    fixed = checkpoint.config.positions != "learned"
    tied = {"source_embedding.tokens.weight"} if checkpoint.config.tie_embeddings else set()
    tied |= {"output_proj.weight"} if checkpoint.config.tie_output else set()
    return sum(
        tensor.numel()
        for name, tensor in checkpoint.weights.items()
        if name not in tied and not (fixed and name.endswith("positions.table"))
    )


def print_checkpoint(found: "Examination") -> None:
    """Print it for people, with the problems first counted and last told."""
    from rich.table import Table
    from rich.text import Text

    from tfexport.cli.tables import print_table

    facts = checkpoint_facts(found)
    state = found.checkpoint.state_dict
    kinds = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in state.values()})
    size = human_size(Path(facts["path"]).stat().st_size)
    count = len(facts["problems"])
    click.echo(f"{facts['path']}: a checkpoint, {size}, {', '.join(kinds)}")
    click.echo(f"layout:     {facts['layout']}")
    click.echo(f"parameters: {facts['parameters']:,}")
    click.echo(f"problems:   {f'{count}, listed at the end' if count else 'none'}")
    config = Table()
    for column in ("config", "value", "from"):
        config.add_column(column)
    for key, fact in facts["config"].items():
        missing = fact["origin"] == "missing"
        text = "–" if fact["value"] is None else str(fact["value"])
        config.add_row(key, text, Text("missing", "bold red") if missing else fact["origin"])
    print_table(config)
    keys = Table()
    keys.add_column("key", overflow="fold")
    keys.add_column("became", overflow="fold")
    ignored = {key for key, targets in facts["keys"].items() if not targets and key not in state}
    for key, targets in compact(facts["keys"]):
        fate = "\n".join(targets)
        keys.add_row(key, fate or ("ignored" if key in ignored else Text("not read", "bold red")))
    print_table(keys)
    for note in facts["notes"]:
        click.echo(f"note: {note}")
    for problem in facts["problems"]:
        click.echo(f"problem: {problem}")


def compact(fates: dict[str, list[str]]) -> list[tuple[str, list[str]]]:
    """Rows of keys and what they became; keys that differ in layer or head alone share a row."""
    rows = list(fates.items())
    for place in range(2):  # the layer, then the head
        groups: dict[tuple[Any, ...], list[tuple[str, str, list[str]]]] = {}
        for key, targets in rows:
            number, general = _without_number(key, place)
            alike = tuple(_without_number(target, place)[1] for target in targets)
            groups.setdefault((general, alike), []).append((number, key, targets))
        rows = []
        for (general, alike), members in groups.items():
            numbers = [number for number, _, _ in members]
            span = f"{{{numbers[0]}…{numbers[-1]}}}"
            if len(members) > 1:
                fate = [target.replace("{}", span) for target in alike]
                rows.append((general.replace("{}", span), fate))
            else:
                rows.append(members[0][1:])
    return rows


def _without_number(name: str, place: int) -> tuple[str, str]:
    """A name's number at a place, counted from its start, and the name with {} for it."""
    found = list(re.finditer(r"(?<=\.)(\d+|\{\d+…\d+\})(?=\.)", name))
    if place >= len(found):
        return "", name
    match = found[place]
    return match[0], f"{name[: match.start()]}{{}}{name[match.end() :]}"
