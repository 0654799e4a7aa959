"""``tfexport inspect``."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tfexport.cli.console import checkpoint_options, human_size, needs

if TYPE_CHECKING:
    from tfexport.model_src.checkpoint.read import Examination


@click.command(short_help="Say what a checkpoint, a bundle or a single file is.")
@click.argument("path", type=click.Path())
@checkpoint_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def inspect(
    ctx: click.Context,
    path: str,
    config: str | None,
    settings: tuple[str, ...],
    layout: str | None,
    as_json: bool,
) -> None:
    """Say what PATH is.

    Of a checkpoint: layout, config (read, assumed or missing), parameters, every key's fate and
    what stands in the way of exporting it. Of a bundle, after checking its checksums: versions,
    limits, graphs, tokenizers, parity. Of a single graph or torch file: what it holds and needs.
    """
    from tfexport.bundle import is_bundle

    if is_bundle(path):
        _inspect_bundle(path, as_json)
        return
    with needs("export"):
        from tfexport.export import describe_file
        from tfexport.model_src.checkpoint.read import examine_checkpoint
    facts = describe_file(path)
    if facts is not None:
        _print_file(path, facts, as_json)
        return
    found = examine_checkpoint(path, config, settings, layout)
    if as_json:
        click.echo(json.dumps(_checkpoint_facts(found), indent=2, ensure_ascii=False))
    else:
        _print_checkpoint(found)
    if found.problems:
        ctx.exit(1)


def _inspect_bundle(path: str, as_json: bool) -> None:
    from rich.table import Table

    from tfexport.bundle import open_bundle
    from tfexport.cli.tables import print_table
    from tfexport.cli.tuning import read_split

    manifest = open_bundle(path)
    if as_json:
        click.echo(manifest.to_json(), nl=False)
        return
    size = human_size(sum(entry.size for entry in manifest.files.values()))
    click.echo(f"{path}: a bundle of tfexport {manifest.tfexport_version}, {size}, checksums good")
    domains = ", ".join(f"{name or 'ai.onnx'} {v}" for name, v in manifest.opset.items())
    limits, parity = manifest.limits, manifest.parity
    facts = {
        "needs": f"onnxruntime {manifest.minimum_onnxruntime} or newer ({domains})",
        "vocabulary": f"{limits.source_vocab_size} source, {limits.target_vocab_size} target",
        "longest": f"{limits.max_source_length} source, {limits.max_target_length} target",
        "special ids": ", ".join(f"{k} {v}" for k, v in asdict(manifest.special_ids).items()),
        "tokenizers": ", ".join(f"{k} {v.file}" for k, v in manifest.tokenizers.items())
        or "none: ids only",
        "parity": _parity(parity) + (", before quantising" if manifest.quantization else ""),
        "weights": _weights(manifest.quantization),
    }
    split = read_split(Path(path))
    if split is not None:
        facts["tuned"] = f"{split.workers} workers of {split.threads} threads on this machine"
    for key, value in facts.items():
        click.echo(f"{key + ':':<13}{value}")
    files = Table()
    for column in ("file", "size", "sha256"):
        files.add_column(column, justify="right" if column == "size" else "left")
    for name, entry in manifest.files.items():
        files.add_row(name, human_size(entry.size), entry.sha256[:16] + "…")
    print_table(files)
    _print_config(manifest.config)


def _print_file(path: str, facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(facts, indent=2, ensure_ascii=False))
        return
    size = human_size(Path(path).stat().st_size)
    click.echo(f"{path}: {facts['kind']}, of tfexport {facts['tfexport_version']}, {size}")
    for key in ("needs", "written_with"):
        for library, version in facts.get(key, {}).items():
            click.echo(f"{key.replace('_', ' ') + ':':<14}{library} {version}")
    for key in ("inputs", "outputs"):
        for name, shape in facts.get(key, {}).items():
            click.echo(f"{key.removesuffix('s') + ':':<14}{name} ({', '.join(map(str, shape))})")
    quantization = facts.get("quantization")
    before = ", before quantising" if quantization else ""
    click.echo(f"{'parity:':<14}{_parity(facts['parity'])}{before}")
    click.echo(f"{'weights:':<14}{_weights(quantization)}")
    _print_config(facts["config"])


def _parity(parity: dict[str, Any] | None) -> str:
    if parity is None:
        return "not compared with eager PyTorch"
    return f"equal to {parity['reference']} ({parity['tokens']} tokens, torch {parity['torch']})"


def _weights(quantization: dict[str, Any] | None) -> str:
    if quantization is None:
        return "float32"
    gate = quantization.get("gate")
    agreement = (
        f"{gate['agreement']:.2%} of {gate['tokens']} tokens are those of float32"
        if isinstance(gate, dict)
        else "not compared with float32"
    )
    kept = ", ".join(quantization.get("kept", ())) or "none"
    return f"{quantization.get('weights')}, {agreement}; kept in float32: {kept}"


def _print_config(config: dict[str, Any]) -> None:
    from rich.table import Table

    from tfexport.cli.tables import print_table

    values = Table()
    values.add_column("config")
    values.add_column("value")
    for key, value in config.items():
        values.add_row(key, str(value))
    print_table(values)


def _checkpoint_facts(found: "Examination") -> dict[str, Any]:
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
                "origin": checkpoint.origins.get(key, "assumed"),
            }
            for key, value in values.items()
        },
        "keys": {key: list(targets) for key, targets in checkpoint.fates.items()},
        "problems": found.problems + found.config_problems,
    }


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


def _print_checkpoint(found: "Examination") -> None:
    from rich.table import Table

    from tfexport.cli.tables import print_table

    facts = _checkpoint_facts(found)
    kinds = sorted(
        {str(t.dtype).removeprefix("torch.") for t in found.checkpoint.state_dict.values()}
    )
    size = human_size(Path(facts["path"]).stat().st_size)
    click.echo(f"{facts['path']}: a checkpoint, {size}, {', '.join(kinds)}")
    click.echo(f"layout:     {facts['layout']}")
    click.echo(f"parameters: {facts['parameters']:,}")
    config = Table()
    for column in ("config", "value", "from"):
        config.add_column(column)
    for key, fact in facts["config"].items():
        missing = fact["origin"] == "missing"
        shown = "–" if fact["value"] is None else str(fact["value"])
        config.add_row(key, shown, "[bold red]missing[/]" if missing else fact["origin"])
    print_table(config)
    keys = Table()
    keys.add_column("key", overflow="fold")
    keys.add_column("became", overflow="fold")
    state = found.checkpoint.state_dict
    for key, targets in facts["keys"].items():
        fate = "\n".join(targets)
        keys.add_row(key, fate or ("[bold red]not read[/]" if key in state else "ignored"))
    print_table(keys)
    for problem in facts["problems"]:
        click.echo(f"problem: {problem}")
