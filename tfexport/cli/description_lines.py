"""Lines that descriptions of several kinds of things share; see ``tfexport inspect``."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from tfexport.errors import shown

if TYPE_CHECKING:
    from tfexport.bundle import SpecialIds
    from tfexport.export import Input
    from tfexport.graph_io import TensorSpec

ALL = "--all"  # the option that shows every row
_WIDTH = 13  # of the name of a fact


def print_facts(facts: Mapping[str, str]) -> None:
    """Print facts by name, a line each."""
    for name, fact in facts.items():
        click.echo(f"{name + ':':<{_WIDTH}}{fact}")


def join_lines(lines: Iterable[str]) -> str:
    """A fact of several lines, for ``print_facts``."""
    return f"\n{'':<{_WIDTH}}".join(lines)


def print_settings(values: Mapping[str, tuple[Any, str]], width: int = _WIDTH) -> None:
    """Print settings by their origin, a line each.

    Args:
        values: of each setting, the value and the origin.
        width: of the names of the facts above.
    """
    from tfexport.cli.reports import settings_lines

    for number, line in enumerate(settings_lines(values)):
        click.echo(f"{'settings:' if number == 0 else '':<{width}}{line}")


def print_config(config: Mapping[str, Any]) -> None:
    """Print a table of every config value."""
    from rich.table import Table

    from tfexport.cli.reports import print_table

    values = Table()
    values.add_column("config")
    values.add_column("value")
    for key, value in config.items():
        values.add_row(str(key), value if isinstance(value, str) else shown(value))
    print_table(values)


def tensor_text(tensor: "TensorSpec | Input") -> str:
    """Name, type and axes of an input or another tensor."""
    return f"{tensor.name} {tensor.dtype} ({axes_text(tensor.axes)})"


def axes_text(axes: Iterable[int | str]) -> str:
    """The sizes and names of axes."""
    return ", ".join(map(str, axes))


def pairs_text(values: Mapping[str, Any]) -> str:
    """Each name with its value."""
    return ", ".join(f"{name} {value}" for name, value in values.items())


def ids_text(special: "SpecialIds") -> str:
    """The special ids by name; the start id only where it is set."""
    ids = asdict(special)
    return pairs_text({k: v for k, v in ids.items() if k != "start" or v is not None})


def parity_text(parity: Any) -> str:
    """The result of the comparison with PyTorch, as an artifact has it: any JSON value."""
    from tfexport.cli.reports import NOT_OWN

    if parity is None:
        return "not compared with eager PyTorch"
    try:
        remark = f"{NOT_OWN}; " if "own_code" in parity else ""
        extent = f"({parity['tokens']} tokens, torch {parity['torch']})"
        return f"{remark}equal to {parity['reference']} {extent}"
    except (TypeError, LookupError):
        return f"unknown format: {shown(parity)}"


def weights_text(quantization: Any) -> str:
    """The kind of the weights and their quality, as an artifact has it: any JSON value."""
    if quantization is None:
        return "float32"
    try:
        kept = ", ".join(quantization.get("kept", ())) or "none"
        gate = quantization.get("gate")
        agreement = "not compared with float32"
        if gate != "not gated":
            share = f"{gate['agreement']:.2%} of {gate['tokens']} tokens"
            agreement = f"{share} are those of float32"
            if gate.get("built_in"):
                agreement += " (built-in samples)"
            if not gate.get("passed", True):
                agreement += ", too few, but --accept-loss was given"
        return f"{quantization.get('weights')}, {agreement}; left in float32: {kept}"
    except (AttributeError, TypeError, ValueError, LookupError):
        return f"unknown format: {shown(quantization)}"
