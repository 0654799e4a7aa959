"""``tfexport inspect``."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tfexport.cli.console import checkpoint_options, human_size, needs, spell
from tfexport.errors import (
    BundleError,
    CheckpointError,
    ConfigError,
    Message,
    MissingDependencyError,
    Option,
    Problem,
    join_problems,
    join_some,
    shown,
)
from tfexport.file_access import describe_substitute, open_file
from tfexport.marian_binary import describe_marian_file, describe_marian_folder

if TYPE_CHECKING:
    from tfexport.bundle import BundlePart, Manifest, SpecialIds
    from tfexport.export import ArtifactInfo
    from tfexport.graph_io import ModuleIO
    from tfexport.languages import Languages
    from tfexport.model_src.checkpoint.checkpoint import Examination


def checkpoint_facts(found: "Examination") -> dict[str, Any]:
    """The complete report as JSON values."""
    from tfexport.model_src.checkpoint.unsupported import add_lines

    checkpoint = found.checkpoint
    remedy = add_lines(found.remedy, checkpoint.path, found.inside)
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
        "remedy": remedy.spelled(spell) if found.problems else None,
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


def print_checkpoint(found: "Examination", every_row: bool) -> None:
    """Print the report: the summary first, then tables, and the problems at the end.

    Args:
        found: what was read of the checkpoint.
        every_row: print the whole config, and what became of every key; by default the settings
            that weights do not show, and the keys that were not read.
    """
    facts = checkpoint_facts(found)
    checkpoint = found.checkpoint
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
        known = {key: (values[key], it) for key, it in unseen.items() if it != "missing"}
        _print_settings(known, 12)
        hidden = f"{len(values) - len(unseen)} config values, and what became of the keys"
        click.echo(f"more:       {hidden}: {_ALL} shows them")
    _print_keys(facts["keys"], state, every_row)
    for note in facts["notes"]:
        click.echo(f"note: {note}")
    click.echo(f"problems:   {len(facts['problems']) or 'none'}")
    for problem in facts["problems"]:
        click.echo(f"problem: {problem}")
    if facts["remedy"]:
        click.echo(facts["remedy"])


_ALL = "--all"


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


def _print_settings(values: Mapping[str, tuple[Any, str]], width: int) -> None:
    """Print settings by their origin, a line each."""
    from tfexport.cli.reports import settings_lines

    for number, line in enumerate(settings_lines(values)):
        click.echo(f"{'settings:' if number == 0 else '':<{width}}{line}")


ONNX_FILE = "an ONNX file"
_WEIGHTS = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".tar")
_BUNDLE = "A bundle is a folder with a manifest.json"
_EXPECTED = f"{_BUNDLE}; a checkpoint is a file of torch.save or a .safetensors file."


def name_kind(path: Path) -> str:
    """A noun for what may be a checkpoint or an exported file.

    Raises:
        CheckpointError: it cannot be either; the message states what it is instead.
    """
    if path.is_dir():
        _require_weights(path)
        return "a folder with a checkpoint"
    if not path.exists():
        raise CheckpointError(f"{path}: {describe_substitute(path) or 'no such file or folder.'}")
    try:
        with open_file(path) as file:
            head = file.read(4096)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}.") from None
    if other := describe_marian_file(path) or describe_substitute(path):
        raise CheckpointError(f"{path}: {other}")
    if path.suffix == ".onnx":
        return ONNX_FILE
    if path.suffix == ".safetensors":
        return "a safetensors checkpoint"
    if head[:1] == b"\x80":
        return "a pickle, perhaps a checkpoint"
    if head.startswith(b"PK\x03\x04"):
        return _name_archive(head)
    if path.suffix in _WEIGHTS:
        return "a file that is named like a checkpoint"
    raise CheckpointError(
        f"{path}: neither a bundle, a checkpoint nor an exported file: {_name_content(head)}. "
        f"{_EXPECTED}"
    )


def _require_weights(folder: Path) -> None:
    """Refuse a folder without any file of weights by its name; see ``name_kind``."""
    names = sorted(item.name for item in folder.iterdir())
    if any(name.endswith(_WEIGHTS) for name in names):
        return
    if (other := describe_substitute(folder / "manifest.json")) is not None:
        raise CheckpointError(f"{folder / 'manifest.json'}: {other}")
    if (other := describe_marian_folder(folder)) is not None:
        raise CheckpointError(f"{folder}: {other}")
    held = join_some(names) or "nothing"
    raise CheckpointError(
        f"{folder}: a folder with neither bundle nor checkpoint; it holds {held}. {_EXPECTED}"
    )


def _name_archive(head: bytes) -> str:
    if b"/data.pkl" in head or b"/version" in head:
        return "a PyTorch checkpoint or program"
    if b".npy" in head:
        return "an archive of NumPy arrays"
    return "a zip archive"


def _name_content(head: bytes) -> str:
    if not head:
        return "it is empty"
    try:
        head[:-3].decode()  # the last character may be cut
    except UnicodeDecodeError:
        return "it holds bytes of an unknown form"
    return "it holds text" if b"\0" not in head else "it holds bytes of an unknown form"


# Where the token of a language goes.
_PLACES = {
    "before": "before the text", "after": "after the text", "first": "as the first target token",
    "start": "as the start token", "source": "before the text",
}  # fmt: skip


@click.command(short_help="Describe a checkpoint, a bundle or a single file.")
@click.argument("path", type=click.Path())
@checkpoint_options
@click.option(
    "--all",
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
    given = {"config": config, "set": settings, "format": layout, "rename": rename}
    if _inspect_bundle_or_part(path, given, every_row, as_json):
        return
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
        _refuse(path, given)
        _print_file(path, info, every_row, as_json)
        return
    values = find_transformers(path, layout)
    if values is not None:
        options = {"config": config, "settings": settings, "rename": rename}
        _inspect_transformers(path, values, options, as_json)
        return
    found = examine_checkpoint(path, config, settings, layout, require=BUNDLE_IDS, rename=rename)
    if as_json:
        _print_json(checkpoint_facts(found))
    else:
        print_checkpoint(found, every_row)
    if found.problems:
        ctx.exit(1)


def _inspect_bundle_or_part(
    path: str, given: dict[str, Any], every_row: bool, as_json: bool
) -> bool:
    """Describe a bundle, or a file of one; return whether the path is either."""
    from tfexport.bundle import find_part, is_bundle

    part = None
    if not is_bundle(path):
        part = find_part(path)
        if part is None:
            return False
    _refuse(path, given)
    if part is None:
        _inspect_bundle(path, every_row, as_json)
    else:
        _print_part(path, part, as_json)
    return True


def _inspect_transformers(
    path: str, values: Mapping[str, Any], options: Mapping[str, Any], as_json: bool
) -> None:
    """Describe a model that no layout reads, which is exported by its own forward."""
    from tfexport.export.artifacts.transformers_model import check_options
    from tfexport.export.artifacts.transformers_source import read_transformers

    given = check_options(options)
    found = read_transformers(path, values, given)
    kind = type(found.model).__name__
    if as_json:
        inputs = [asdict(each) for each in found.inputs]
        _print_json({
            "path": path, "class": kind, "parameters": found.parameters, "inputs": inputs,
            "special_ids": asdict(found.special), "max_length": found.max_length,
            "generation": {**found.generation.defaults}, "notes": [*found.notes],
        })  # fmt: skip
        return
    named = [f"{it.name} {it.dtype} ({', '.join(map(str, it.axes))})" for it in found.inputs]
    click.echo(
        f"{path}: {kind} of transformers, which no layout reads: exported by its own forward"
    )
    facts = {
        "parameters": f"{found.parameters:,}",
        "inputs": f"\n{'':<13}".join(named),
        "longest": f"{found.max_length} target",
        "special ids": _ids(found.special),
        "generation": ", ".join(f"{k} {v}" for k, v in found.generation.defaults.items()),
    }
    for key, value in facts.items():
        click.echo(f"{key + ':':<13}{value}")
    for note in found.notes:
        click.echo(f"note: {note}")


def _refuse(path: str, given: dict[str, Any]) -> None:
    """Refuse the options of checkpoints for anything else."""
    problems = [
        Problem(None, f"--{name} applies to checkpoints, but {path} was already exported")
        for name, value in given.items()
        if value
    ]
    if problems:
        raise ConfigError(join_problems("inspect", problems))


def _print_json(values: dict[str, Any]) -> None:
    try:
        text = json.dumps(values, indent=2, ensure_ascii=False)
    except (RecursionError, ValueError) as error:
        raise BundleError(f"its metadata cannot be printed: {error}.") from None
    click.echo(text)


def _inspect_bundle(path: str, every_row: bool, as_json: bool) -> None:
    from tfexport.bundle import open_bundle
    from tfexport.cli.tuning import read_layout

    manifest = open_bundle(path)
    if as_json:
        try:
            click.echo(manifest.to_json(), nl=False)
        except RecursionError as error:
            raise BundleError(f"{path}: its manifest is nested too deep to be printed.") from error
        return
    facts = _bundle_facts(manifest)
    layout = read_layout(Path(path))
    if layout is not None:
        facts["tuned"] = f"{layout.workers} workers of {layout.threads} threads on this machine"
    click.echo(
        f"{path}: a bundle of tfexport {manifest.tfexport_version}, "
        f"{human_size(manifest.size)}, checksums good"
    )
    for key, value in facts.items():
        click.echo(f"{key + ':':<13}{value}")
    set_to = {**manifest.config, **manifest.generation}
    _print_settings({key: (set_to.get(key), it) for key, it in manifest.origins.items()}, 13)
    if not every_row:
        parameters = f", {len(manifest.parameters)} parameters" if manifest.parameters else ""
        counted = f"{len(manifest.config)} config values, {len(manifest.files)} files{parameters}"
        click.echo(f"{'more:':<13}{counted}: {_ALL} shows them")
        return
    _print_config(manifest.config)
    if manifest.parameters:
        _print_parameters(manifest.parameters)
    _print_files(manifest)


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


def _bundle_facts(manifest: "Manifest") -> dict[str, str]:
    """The facts that are printed below the config and the files of a bundle, by name."""
    limits, parity = manifest.limits, manifest.parity
    domains = _domains(manifest.opset)
    facts = {
        "needs": f"onnxruntime {manifest.minimum_onnxruntime} or newer ({domains})",
        "vocabulary": _both(limits.source_vocab_size, limits.target_vocab_size, manifest),
        "longest": _both(limits.max_source_length, limits.max_target_length, manifest),
        "special ids": _special_ids(manifest),
        "tokenizers": ", ".join(f"{k} {v.file}" for k, v in manifest.tokenizers.items())
        or "none: ids only",
        "parity": _parity(parity) + (", before quantising" if manifest.quantization else ""),
        "weights": _weights(manifest.quantization),
        "engine": _engine(manifest),
    }
    if manifest.generation:
        facts["generation"] = ", ".join(f"{k} {v}" for k, v in manifest.generation.items())
    if manifest.languages is not None:
        facts["languages"] = _languages(manifest.languages)
    if manifest.module_io is not None:
        found = (manifest.module or {}).get("found")
        facts |= _module_facts(manifest.module_io, limits.max_target_length, found)
    if manifest.preprocessing is not None:
        facts["reads"] = _preprocessing(manifest.preprocessing, manifest.media)
    if manifest.states:
        axes = ", ".join(map(str, manifest.states[0].axes))
        facts["decoder"] = f"recognised, over states ({axes}) of states.onnx"
        if manifest.embedded_encoder is not None:
            facts["decoder"] = f"recognised, over states ({axes})"
            facts["encoder"] = "its layers are recognised, over embeddings of embeddings.onnx"
    return facts


def _preprocessing(part: Mapping[str, Any], media: str | None) -> str:
    """The files that a bundle reads, and what is made of them."""
    rest = {key: value for key, value in part.items() if key not in ("kind", "input", "steps")}
    values = ", ".join(f"{key} {value}" for key, value in rest.items())
    lines = [f"{media} as {part['kind']} into {part['input']}"]
    lines += [values] if values else []
    lines += [", ".join(f"{k} {v}" for k, v in step.items()) for step in part.get("steps", ())]
    return f"\n{'':<13}".join(lines)


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


def _engine(manifest: "Manifest") -> str:
    """The engine that is used here, and why it is not the native one."""
    from tfexport.runtime.model.native_engine import instruction_set
    from tfexport.runtime.model.open_model import choose_engine

    engine, reason = choose_engine(manifest)
    if reason:
        return f"{engine}: {reason}"
    return f"{engine} {instruction_set()}"


def _special_ids(manifest: "Manifest") -> str:
    return _ids(manifest.special_ids)


def _ids(special: "SpecialIds") -> str:
    ids = asdict(special)
    return ", ".join(f"{k} {v}" for k, v in ids.items() if k != "start" or v is not None)


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
    io: "ModuleIO", longest: int | None, found: Mapping[str, Sequence[str]] | None
) -> dict[str, str]:
    """The tensors of a user's module, and how it steps.

    Args:
        io: the tensors.
        longest: tokens of a row.
        found: of a module that is taken by its forward, where each tensor is in that.
    """
    facts = {}
    for kind, tensors in (("inputs", io.inputs), ("memory", io.memory), ("state", io.state)):
        named = [f"{t.name} {t.dtype} ({', '.join(map(str, t.axes))})" for t in tensors]
        places = (found or {}).get(kind, [])
        if len(places) == len(named):
            lines = (f"{each}  {place}" for each, place in zip(named, places, strict=True))
            facts[kind] = f"\n{'':<13}".join(lines)
        else:
            facts[kind] = ", ".join(named)
    facts["steps"] = "with a state, a token at a time"
    if found is not None:
        facts["steps"] += ", found in the module's forward"
        facts["again"] = f"\n{'':<13}".join(found["again"]) or "nothing is computed twice"
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


def _print_part(path: str, part: "BundlePart", as_json: bool) -> None:
    """Describe one file of a bundle."""
    bundle, version = str(part.bundle), part.manifest.tfexport_version
    if as_json:
        kind = "graph of a bundle" if part.graph else "file of a bundle"
        _print_json({
            "kind": kind, "graph": part.graph, "bundle": bundle, "tfexport_version": version,
        })  # fmt: skip
        return
    size = human_size(Path(path).stat().st_size)
    click.echo(f"{path}: {part.what} of the bundle {bundle}, of tfexport {version}, {size}")
    click.echo(f"The bundle is described by: tfexport inspect {shlex.quote(bundle)}")


def _print_file(path: str, info: "ArtifactInfo", every_row: bool, as_json: bool) -> None:
    if as_json:
        _print_json(info.to_dict())
        return
    size = human_size(Path(path).stat().st_size)
    click.echo(f"{path}: {info.kind}, of tfexport {info.tfexport_version}, {size}")
    for title, versions in (("needs:", info.needs), ("written with:", info.written_with)):
        for library, version in versions.items():
            click.echo(f"{title:<14}{library} {version}")
    for title, tensors in (("input:", info.inputs), ("output:", info.outputs)):
        for name, axes in tensors.items():
            click.echo(f"{title:<14}{name} ({', '.join(map(str, axes))})")
    before = ", before quantising" if info.quantization else ""
    click.echo(f"{'parity:':<14}{_parity(info.parity)}{before}")
    click.echo(f"{'weights:':<14}{_weights(info.quantization)}")
    if every_row:
        _print_config(info.config)
    else:
        click.echo(f"{'more:':<14}{len(info.config)} config values: {_ALL} shows them")


def _parity(parity: Any) -> str:
    from tfexport.cli.reports import NOT_OWN

    if parity is None:
        return "not compared with eager PyTorch"
    try:
        own = f"{NOT_OWN}; " if "own_code" in parity else ""
        found = f"({parity['tokens']} tokens, torch {parity['torch']})"
        return f"{own}equal to {parity['reference']} {found}"
    except (TypeError, LookupError):
        return f"unknown format: {shown(parity)}"


def _weights(quantization: Any) -> str:
    if quantization is None:
        return "float32"
    try:
        kept = ", ".join(quantization.get("kept", ())) or "none"
        gate = quantization.get("gate")
        agreement = "not compared with float32"
        if gate != "not gated":
            share = f"{gate['agreement']:.2%} of {gate['tokens']} tokens"
            agreement = f"{share} are those of float32"
            agreement += " (built-in samples)" if gate.get("built_in") else ""
            if gate.get("built_in"):
                agreement += " (built-in samples)"
            if not gate.get("passed", True):
                agreement += ", too few, but --accept-loss was given"
        return f"{quantization.get('weights')}, {agreement}; left in float32: {kept}"
    except (AttributeError, TypeError, ValueError, LookupError):
        return f"unknown format: {shown(quantization)}"


def _domains(opset: Any) -> str:
    if not isinstance(opset, dict):
        return f"unknown format: {shown(opset)}"
    return ", ".join(f"{name or 'ai.onnx'} {shown(version)}" for name, version in opset.items())


def _print_config(config: dict[str, Any]) -> None:
    from rich.table import Table

    from tfexport.cli.reports import print_table

    values = Table()
    values.add_column("config")
    values.add_column("value")
    for key, value in config.items():
        values.add_row(str(key), value if isinstance(value, str) else shown(value))
    print_table(values)
