"""The report of ``tfexport inspect`` on a checkpoint: summary, config, keys, problems."""

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
    """The whole report as JSON values."""
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
    """The number of trained values: without fixed position tables, tied tables counted once."""
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
    """Print the report as tables; the summary and the problems come last."""
    from rich.table import Table
    from rich.text import Text

    from tfexport.cli.tables import print_table

    facts = checkpoint_facts(found)
    state = found.checkpoint.state_dict
    kinds = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in state.values()})
    size = human_size(Path(facts["path"]).stat().st_size)
    count = len(facts["problems"])
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
        became = "\n".join(targets)
        keys.add_row(key, became or ("ignored" if key in ignored else Text("not read", "bold red")))
    print_table(keys)
    click.echo(f"{facts['path']}: a checkpoint, {size}, {', '.join(kinds)}")
    click.echo(f"layout:     {facts['layout']}")
    click.echo(f"parameters: {facts['parameters']:,}")
    click.echo(f"problems:   {count or 'none'}")
    for note in facts["notes"]:
        click.echo(f"note: {note}")
    for problem in facts["problems"]:
        click.echo(f"problem: {problem}")


def compact(key_report: dict[str, list[str]]) -> list[tuple[str, list[str]]]:
    """Rows of keys and their targets; keys that differ in layer or head number share a row."""
    rows = list(key_report.items())
    for place in range(2):  # the layer, then the head
        groups: dict[tuple[Any, ...], list[tuple[str, str, list[str]]]] = {}
        for key, targets in rows:
            number, general = _without_number(key, place)
            general_targets = tuple(_without_number(target, place)[1] for target in targets)
            groups.setdefault((general, general_targets), []).append((number, key, targets))
        rows = []
        for (general, general_targets), members in groups.items():
            numbers = [number for number, _, _ in members]
            span = f"{{{numbers[0]}…{numbers[-1]}}}"
            if len(members) > 1:
                became = [target.replace("{}", span) for target in general_targets]
                rows.append((general.replace("{}", span), became))
            else:
                rows.append(members[0][1:])
    return rows


def _without_number(name: str, place: int) -> tuple[str, str]:
    """The ``place``-th number in a dotted name, and the name with {} in its place."""
    found = list(re.finditer(r"(?<=\.)(\d+|\{\d+…\d+\})(?=\.)", name))
    if place >= len(found):
        return "", name
    match = found[place]
    return match[0], f"{name[: match.start()]}{{}}{name[match.end() :]}"
