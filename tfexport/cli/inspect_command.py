"""``tfexport inspect``: what a path is, and which description of it is printed.

A bundle and its files are described by ``bundle_description``, a single exported file by
``artifact_description``, a checkpoint by ``checkpoint_description``. ``file_kind`` refuses what is
none of these.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import click

from tfexport.cli.artifact_description import print_artifact
from tfexport.cli.bundle_description import part_facts, print_bundle, print_part
from tfexport.cli.checkpoint_description import (
    checkpoint_facts,
    print_checkpoint,
    print_transformers,
    transformers_facts,
)
from tfexport.cli.console import checkpoint_options, needs
from tfexport.cli.description_lines import ALL
from tfexport.cli.file_kind import ONNX_FILE, name_kind
from tfexport.errors import (
    BundleError,
    ConfigError,
    MissingDependencyError,
    Problem,
    join_problems,
)


class _CheckpointOptions(NamedTuple):
    """The options that say how a checkpoint is read; see ``checkpoint_options``."""

    config: str | None
    settings: tuple[str, ...]
    layout: str | None
    rename: str | None

    def refuse(self, path: str) -> None:
        """Refuse them for anything else.

        Raises:
            ConfigError: some are set; all of those are named.
        """
        flags = {
            "config": self.config, "set": self.settings, "format": self.layout,
            "rename": self.rename,
        }  # fmt: skip
        problems = [
            Problem(None, f"--{flag} applies to checkpoints, but {path} was already exported")
            for flag, value in flags.items()
            if value
        ]
        if problems:
            raise ConfigError(join_problems("inspect", problems))


@click.command(short_help="Describe a checkpoint, a bundle or a single file.")
@click.argument("path", type=click.Path())
@checkpoint_options
@click.option(
    ALL,
    "every_row",
    is_flag=True,
    help="Print the whole config, every file of a bundle, and what became of every key.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, which has everything.")
@click.pass_context
def inspect(
    ctx: click.Context,
    path: str,
    config: str | None,
    settings: tuple[str, ...],
    layout: str | None,
    rename: str | None,
    every_row: bool,
    as_json: bool,
) -> None:
    """Describe PATH.

    Of a checkpoint: layout, parameters, settings that its weights do not show, keys that were not
    read, and why it cannot be exported. Of a bundle, after checking its checksums: versions,
    limits, tokenizers, parity. Of a single graph or torch file: what it contains and needs. --all
    prints every config value, file and key below.
    """
    options = _CheckpointOptions(config, settings, layout, rename)
    if _inspect_bundle_or_part(path, options, every_row, as_json):
        return
    if not _inspect_artifact_or_checkpoint(path, options, every_row, as_json):
        ctx.exit(1)


def _inspect_bundle_or_part(
    path: str, options: _CheckpointOptions, every_row: bool, as_json: bool
) -> bool:
    """Describe a bundle, or a file of one; return whether the path is either."""
    from tfexport.bundle import find_part, is_bundle

    if is_bundle(path):
        options.refuse(path)
        _inspect_bundle(path, every_row, as_json)
        return True
    part = find_part(path)
    if part is None:
        return False
    options.refuse(path)
    if as_json:
        _print_json(part_facts(part))
    else:
        print_part(path, part)
    return True


def _inspect_bundle(path: str, every_row: bool, as_json: bool) -> None:
    """Check the files of a bundle, and describe it."""
    from tfexport.bundle import open_bundle

    manifest = open_bundle(path)
    if not as_json:
        print_bundle(path, manifest, every_row)
        return
    try:
        click.echo(manifest.to_json(), nl=False)
    except RecursionError as error:
        raise BundleError(f"{path}: its manifest is nested too deep to be printed.") from error


def _inspect_artifact_or_checkpoint(
    path: str, options: _CheckpointOptions, every_row: bool, as_json: bool
) -> bool:
    """Describe an exported file or a checkpoint; return whether there is no problem with it."""
    kind = name_kind(Path(path))
    try:
        with needs("export"):
            if kind != ONNX_FILE:
                import torch  # noqa: F401 - so that torch is named first if several are missing
            from tfexport.export import read_info
            from tfexport.export.artifacts.info import read_graph_info
            from tfexport.export.artifacts.transformers_source import find_transformers
            from tfexport.model_src.checkpoint.read import examine_checkpoint
            from tfexport.model_src.config import BUNDLE_IDS
    except MissingDependencyError as error:
        raise MissingDependencyError(f"{path}: {kind}; {error}") from error
    info = read_graph_info(path) if kind == ONNX_FILE else read_info(path)
    if info is not None:
        options.refuse(path)
        if as_json:
            _print_json(info.to_dict())
        else:
            print_artifact(path, info, every_row)
        return True
    values = find_transformers(path, options.layout)
    if values is not None:
        _inspect_transformers(path, values, options, as_json)
        return True
    config, settings, layout, rename = options
    examination = examine_checkpoint(
        path, config, settings, layout, require=BUNDLE_IDS, rename=rename
    )
    if as_json:
        _print_json(checkpoint_facts(examination))
    else:
        print_checkpoint(examination, every_row)
    return not examination.problems


def _inspect_transformers(
    path: str, values: Mapping[str, Any], options: _CheckpointOptions, as_json: bool
) -> None:
    """Describe a model that no layout reads, which is exported by its own forward."""
    from tfexport.export.artifacts.transformers_model import check_options
    from tfexport.export.artifacts.transformers_source import read_transformers

    config, settings, _, rename = options
    checked = check_options({"config": config, "settings": settings, "rename": rename})
    model = read_transformers(path, values, checked)
    if as_json:
        _print_json(transformers_facts(path, model))
    else:
        print_transformers(path, model)


def _print_json(values: dict[str, Any]) -> None:
    try:
        text = json.dumps(values, indent=2, ensure_ascii=False)
    except (RecursionError, ValueError) as error:
        raise BundleError(f"its metadata cannot be printed: {error}.") from None
    click.echo(text)
