"""The description of a bundle, by its manifest, and of one file of a bundle."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tfexport.cli.console import human_size
from tfexport.cli.description_lines import (
    ALL,
    axes_text,
    ids_text,
    join_lines,
    pairs_text,
    parity_text,
    print_config,
    print_facts,
    print_settings,
    tensor_text,
    weights_text,
)
from tfexport.errors import join_some, shown

if TYPE_CHECKING:
    from tfexport.bundle import BundlePart, Manifest
    from tfexport.graph_io import ModuleIO
    from tfexport.languages import Languages

# Where the token of a language goes.
_PLACES = {
    "before": "before the text", "after": "after the text", "first": "as the first target token",
    "start": "as the start token", "source": "before the text",
}  # fmt: skip


def print_bundle(path: str, manifest: "Manifest", every_row: bool) -> None:
    """Print the facts of a bundle whose files are sound.

    Args:
        path: of the bundle.
        manifest: of the bundle.
        every_row: print the whole config, every parameter and every file.
    """
    from tfexport.cli.tuning import read_layout

    facts = _bundle_facts(manifest)
    layout = read_layout(Path(path))
    if layout is not None:
        facts["tuned"] = f"{layout.workers} workers of {layout.threads} threads on this machine"
    click.echo(
        f"{path}: a bundle of tfexport {manifest.tfexport_version}, "
        f"{human_size(manifest.size)}, checksums good"
    )
    print_facts(facts)
    values = {**manifest.config, **manifest.generation}
    print_settings({key: (values.get(key), origin) for key, origin in manifest.origins.items()})
    if not every_row:
        parameters = f", {len(manifest.parameters)} parameters" if manifest.parameters else ""
        counts = f"{len(manifest.config)} config values, {len(manifest.files)} files{parameters}"
        print_facts({"more": f"{counts}: {ALL} shows them"})
        return
    print_config(manifest.config)
    if manifest.parameters:
        _print_parameters(manifest.parameters)
    _print_files(manifest)


def _bundle_facts(manifest: "Manifest") -> dict[str, str]:
    """The facts of a bundle by name, as they are printed above its config and its files."""
    limits, parity = manifest.limits, manifest.parity
    domains = domains_text(manifest.opset)
    facts = {
        "needs": f"onnxruntime {manifest.minimum_onnxruntime} or newer ({domains})",
        "vocabulary": _both(limits.source_vocab_size, limits.target_vocab_size, manifest),
        "longest": _both(limits.max_source_length, limits.max_target_length, manifest),
        "special ids": ids_text(manifest.special_ids),
        "tokenizers": ", ".join(f"{k} {v.file}" for k, v in manifest.tokenizers.items())
        or "none: ids only",
        "parity": parity_text(parity) + (", before quantising" if manifest.quantization else ""),
        "weights": weights_text(manifest.quantization),
        "engine": _engine(manifest),
    }
    if manifest.generation:
        facts["generation"] = pairs_text(manifest.generation)
    if manifest.languages is not None:
        facts["languages"] = _languages(manifest.languages)
    if manifest.module_io is not None:
        places = (manifest.module or {}).get("found")
        facts |= _module_facts(manifest.module_io, limits.max_target_length, places)
    if manifest.reads == "texts":
        facts["reads"] = "texts as a whole, not a sentence at a time"
    if manifest.preprocessing is not None:
        facts["reads"] = _preprocessing(manifest.preprocessing, manifest.media)
    if manifest.states:
        axes = axes_text(manifest.states[0].axes)
        facts["decoder"] = f"recognised, over states ({axes}) of states.onnx"
        if manifest.embedded_encoder is not None:
            facts["decoder"] = f"recognised, over states ({axes})"
            facts["encoder"] = "its layers are recognised, over embeddings of embeddings.onnx"
    return facts


def _preprocessing(part: Mapping[str, Any], media: str | None) -> str:
    """The files that a bundle reads, and what is made of them."""
    rest = {key: value for key, value in part.items() if key not in ("kind", "input", "steps")}
    lines = [f"{media} as {part['kind']} into {part['input']}"]
    lines += [pairs_text(rest)] if rest else []
    lines += map(pairs_text, part.get("steps", ()))
    return join_lines(lines)


def _engine(manifest: "Manifest") -> str:
    """The engine that is used here, and why it is not the native one."""
    from tfexport.runtime.model.native_engine import instruction_set
    from tfexport.runtime.model.open_model import choose_engine

    engine, reason = choose_engine(manifest)
    if reason:
        return f"{engine}: {reason}"
    return f"{engine} {instruction_set()}"


def _languages(languages: "Languages") -> str:
    """The languages of a model, and how its language tokens are used."""
    parts = []
    for side in ("source", "target"):
        place, default = getattr(languages, f"{side}_place"), getattr(languages, side)
        if place is not None:
            parts.append(
                f"{side} {_PLACES[place]}" + (f" ({default} by default)" if default else "")
            )
        elif default is not None:
            parts.append(f"{side} {default}")
    codes = join_some(sorted(languages.ids), 12)
    return "; ".join([*parts, codes] if codes else parts)


def _both(source: int | None, target: int | None, manifest: "Manifest") -> str:
    """Sizes of source and target; only the target's if the source is not ids."""
    io = manifest.module_io
    if io is not None and not io.takes_ids:
        return f"{target} target"
    return f"{source} source, {target} target"


def _module_facts(
    io: "ModuleIO", longest: int | None, places: Mapping[str, Sequence[str]] | None
) -> dict[str, str]:
    """The tensors of a user's module, and how it steps.

    Args:
        io: the tensors.
        longest: tokens of a row.
        places: of a module that is taken by its forward, where each tensor is in that, and what
            is computed again.
    """
    facts = {}
    for kind, specs in (("inputs", io.inputs), ("memory", io.memory), ("state", io.state)):
        tensors = [tensor_text(spec) for spec in specs]
        kind_places = (places or {}).get(kind, [])
        if len(kind_places) == len(tensors):
            pairs = zip(tensors, kind_places, strict=True)
            facts[kind] = join_lines(f"{tensor}  {place}" for tensor, place in pairs)
        else:
            facts[kind] = ", ".join(tensors)
    facts["steps"] = "with a state, a token at a time"
    if places is not None:
        facts["steps"] += ", found in the module's forward"
        facts["again"] = join_lines(places["again"]) or "nothing is computed twice"
    if io.recomputes and longest is not None:
        positions = longest * (longest + 1) // 2
        facts["steps"] = (
            f"without a state: every step computes the complete prefix, {positions:,} positions "
            f"for {longest:,} tokens, {positions / longest:.1f} times as many as with a cache"
        )
    if io.takes_ids:
        facts["batches"] = (
            "rows of any length" if io.padded
            else "rows of one length only: padding would change the result"
        )  # fmt: skip
    return facts


def domains_text(opset: Any) -> str:
    """Each operator domain with its version; any JSON value is possible."""
    if not isinstance(opset, dict):
        return f"unknown format: {shown(opset)}"
    return ", ".join(f"{name or 'ai.onnx'} {shown(version)}" for name, version in opset.items())


def _print_parameters(parameters: dict[str, list[str]]) -> None:
    """Print what became of the parameters of a module that was recognised."""
    from rich.table import Table

    from tfexport.cli.reports import print_table

    table = Table()
    for column in ("parameter of the module", "became"):
        table.add_column(column, overflow="fold")
    for name, weights in parameters.items():
        table.add_row(name, "\n".join(weights) or "–")
    print_table(table)


def _print_files(manifest: "Manifest") -> None:
    """Print the files of a bundle."""
    from rich.table import Table

    from tfexport.cli.reports import print_table

    files = Table()
    for column in ("file", "size", "sha256"):
        files.add_column(column, justify="right" if column == "size" else "left")
    for name, entry in manifest.files.items():
        files.add_row(name, human_size(entry.size), entry.sha256[:16] + "…")
    print_table(files)


def part_facts(part: "BundlePart") -> dict[str, Any]:
    """One file of a bundle, as JSON values."""
    return {
        "kind": "graph of a bundle" if part.graph else "file of a bundle",
        "graph": part.graph,
        "bundle": str(part.bundle),
        "tfexport_version": part.manifest.tfexport_version,
    }


def print_part(path: str, part: "BundlePart") -> None:
    """Print what one file of a bundle is, and how the bundle is described."""
    bundle, version = str(part.bundle), part.manifest.tfexport_version
    size = human_size(Path(path).stat().st_size)
    click.echo(f"{path}: {part.what} of the bundle {bundle}, of tfexport {version}, {size}")
    click.echo(f"The bundle is described by: tfexport inspect {shlex.quote(bundle)}")
