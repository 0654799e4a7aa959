"""The description of a checkpoint: one that a layout reads, and one that only its library does."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tfexport.cli.console import human_size, spell
from tfexport.cli.description_lines import (
    ALL,
    ids_text,
    join_lines,
    pairs_text,
    print_facts,
    print_settings,
    tensor_text,
)
from tfexport.errors import Message, Option

if TYPE_CHECKING:
    from tfexport.export.artifacts.transformers_call import TransformersModel
    from tfexport.model_src.checkpoint.checkpoint import Examination


def checkpoint_facts(examination: "Examination") -> dict[str, Any]:
    """The complete report as JSON values."""
    from tfexport.model_src.checkpoint.unsupported import add_lines

    checkpoint = examination.checkpoint
    remedy = add_lines(examination.remedy, checkpoint.path, examination.inside)
    values = checkpoint.config.to_dict()
    problems = examination.problems + examination.config_problems
    missing = [key for key, origin in checkpoint.origins.items() if origin == "missing"]
    return {
        "path": checkpoint.name,
        "layout": checkpoint.layout,
        "parameters": _parameters(examination),
        "config": {
            key: {
                "value": None if key in missing else value,
                "origin": _spelled_origin(checkpoint.origins.get(key, "assumed")),
            }
            for key, value in values.items()
        },
        "keys": {key: list(targets) for key, targets in checkpoint.key_report.items()},
        "notes": [Message(note).spelled(spell) for note in examination.notes],
        "problems": [Message(problem).spelled(spell) for problem in problems],
        "remedy": remedy.spelled(spell) if examination.problems else None,
    }


def _spelled_origin(origin: str) -> str:
    return spell(Option(origin)) if origin == "settings" else origin


def _parameters(examination: "Examination") -> int:
    """The number of trained values: without fixed position tables, tied tables counted once."""
    checkpoint = examination.checkpoint
    fixed = checkpoint.config.positions != "learned"
    tied = {"source_embedding.tokens.weight"} if checkpoint.config.tie_embeddings else set()
    tied |= {"output_proj.weight"} if checkpoint.config.tie_output else set()
    return sum(
        tensor.numel()
        for name, tensor in checkpoint.weights.items()
        if name not in tied and not (fixed and name.endswith("positions.table"))
    )


def print_checkpoint(examination: "Examination", every_row: bool) -> None:
    """Print the report: the summary first, then tables, and the problems at the end.

    Args:
        examination: what was read of the checkpoint.
        every_row: print the whole config, and what became of every key; by default the settings
            that weights do not show, and the keys that were not read.
    """
    facts = checkpoint_facts(examination)
    checkpoint = examination.checkpoint
    state = checkpoint.state_dict
    kinds = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in state.values()})
    size = human_size(Path(facts["path"]).stat().st_size)
    click.echo(f"{facts['path']}: a checkpoint, {size}, {', '.join(kinds)}")
    click.echo(f"layout:     {facts['layout']}")
    click.echo(f"parameters: {facts['parameters']:,}")
    if every_row:
        _print_origins(facts["config"])
    else:
        unseen, values = checkpoint.unseen, checkpoint.config.to_dict()
        known = {
            key: (values[key], origin) for key, origin in unseen.items() if origin != "missing"
        }
        print_settings(known, 12)
        hidden = f"{len(values) - len(unseen)} config values, and what became of the keys"
        click.echo(f"more:       {hidden}: {ALL} shows them")
    _print_keys(facts["keys"], state, every_row)
    for note in facts["notes"]:
        click.echo(f"note: {note}")
    click.echo(f"problems:   {len(facts['problems']) or 'none'}")
    for problem in facts["problems"]:
        click.echo(f"problem: {problem}")
    if facts["remedy"]:
        click.echo(facts["remedy"])


def _print_origins(config: Mapping[str, Mapping[str, Any]]) -> None:
    """Print every config value with where it came from."""
    from rich.table import Table
    from rich.text import Text

    from tfexport.cli.reports import print_table

    table = Table()
    for column in ("config", "value", "from"):
        table.add_column(column)
    for key, fact in config.items():
        missing = fact["origin"] == "missing"
        text = "–" if fact["value"] is None else str(fact["value"])
        table.add_row(key, text, Text("missing", "bold red") if missing else fact["origin"])
    print_table(table)


def _print_keys(keys: Mapping[str, list[str]], state: Mapping[str, Any], every_row: bool) -> None:
    """Print what became of the keys; without ``every_row``, of those that were not read."""
    from rich.table import Table
    from rich.text import Text

    from tfexport.cli.reports import print_table
    from tfexport.model_src.checkpoint.keymap import compact_report

    table = Table()
    table.add_column("key", overflow="fold")
    table.add_column("became", overflow="fold")
    ignored = {key for key, targets in keys.items() if not targets and key not in state}
    for key, targets in compact_report(keys).items():
        if targets:
            became: str | Text = "\n".join(targets)
        else:
            became = "ignored" if key in ignored else Text("not read", "bold red")
        if every_row or isinstance(became, Text):
            table.add_row(key, became)
    if table.row_count:
        print_table(table)


def transformers_facts(path: str, model: "TransformersModel") -> dict[str, Any]:
    """A model that no layout reads, which is exported by its own forward, as JSON values."""
    return {
        "path": path, "class": type(model.model).__name__, "parameters": model.parameters,
        "inputs": [asdict(tensor) for tensor in model.inputs],
        "special_ids": asdict(model.special), "max_length": model.max_length,
        "generation": {**model.generation.defaults}, "notes": [*model.notes],
    }  # fmt: skip


def print_transformers(path: str, model: "TransformersModel") -> None:
    """Print a model that no layout reads, which is exported by its own forward."""
    kind = type(model.model).__name__
    click.echo(
        f"{path}: {kind} of transformers, which no layout reads: exported by its own forward"
    )
    facts = {
        "parameters": f"{model.parameters:,}",
        "inputs": join_lines(map(tensor_text, model.inputs)),
        "longest": f"{model.max_length} target",
        "special ids": ids_text(model.special),
        "generation": pairs_text(model.generation.defaults),
    }
    print_facts(facts)
    for note in model.notes:
        click.echo(f"note: {note}")
