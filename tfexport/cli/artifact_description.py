"""The description of a single exported file: a graph or a torch file, by its metadata."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tfexport.cli.console import human_size
from tfexport.cli.description_lines import (
    ALL,
    axes_text,
    parity_text,
    print_config,
    weights_text,
)

if TYPE_CHECKING:
    from tfexport.export import ArtifactInfo


def print_artifact(path: str, info: "ArtifactInfo", every_row: bool) -> None:
    """Print what a file contains and needs.

    Args:
        path: of the file.
        info: its metadata.
        every_row: print the whole config.
    """
    size = human_size(Path(path).stat().st_size)
    click.echo(f"{path}: {info.kind}, of tfexport {info.tfexport_version}, {size}")
    for title, versions in (("needs:", info.needs), ("written with:", info.written_with)):
        for library, version in versions.items():
            click.echo(f"{title:<14}{library} {version}")
    for title, tensors in (("input:", info.inputs), ("output:", info.outputs)):
        for name, axes in tensors.items():
            click.echo(f"{title:<14}{name} ({axes_text(axes)})")
    before = ", before quantising" if info.quantization else ""
    click.echo(f"{'parity:':<14}{parity_text(info.parity)}{before}")
    click.echo(f"{'weights:':<14}{weights_text(info.quantization)}")
    if every_row:
        print_config(info.config)
    else:
        click.echo(f"{'more:':<14}{len(info.config)} config values: {ALL} shows them")
