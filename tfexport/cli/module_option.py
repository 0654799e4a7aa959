"""``--module package.file:factory``: custom modules, from a function that returns one."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from tfexport.cli.console import needs, plain_warnings, progress_bar, spell
from tfexport.cli.quantize_command import print_export
from tfexport.errors import ConfigError, Message, Option, TfexportError, join_problems, shown
from tfexport.export.artifacts.option_rules import (
    CALL,
    DECLARE_INPUTS,
    FRAMING,
    NEEDED,
    OF_CHECKPOINTS,
    RECOGNISED,
    SPLITS,
    STEPS,
    TOKENIZERS,
    TORCHSCRIPT,
    kind_of,
    takes,
)
from tfexport.typing import Progress

if TYPE_CHECKING:
    from tfexport.export import ExportResult, ParityReport

MODULE = click.option(
    "--module",
    metavar="PACKAGE.FILE:FACTORY",
    help="Instead of --checkpoint: a function without parameters that returns the arguments of "
    "tfexport.export.export, 'model' among them, as a dict. It is looked up in the current folder "
    "first, and its code is imported and run.",
)
STEPS_OPTION = click.option(
    "--steps",
    type=click.Choice(STEPS),
    help="With --module: find encoder, cache and step in the module's forward, or take its methods "
    "encode and decode, or encode, start and step. Default: forward, where it has one that takes "
    "the inputs and the target ids; methods are compared with it.",
)
# Options of ``tfexport onnx`` that apply to modules, too.
_TAKEN = (
    "tokenizer", "source_tokenizer", "split", "source_split", "target_split", "graph", "quantize",
    "accept_loss", "samples", "expect", "source_language", "target_language", "portable", "opset",
    "reads", "steps",
)  # fmt: skip
_NEEDED = ("model", *DECLARE_INPUTS[:1], *NEEDED)
_OF_EXPORT = ("graph", "quantize", "accept_loss", "verify", "force", "pack", "progress")
# Arguments from a factory that are dropped for outputs that do not use them.
_OF_TEXT = (*TOKENIZERS, *SPLITS, *FRAMING, "reads")


def read_factory(name: str) -> dict[str, Any]:
    """Import and call a factory, and check that it returns the arguments of ``export``.

    Raises:
        ConfigError: there is no such function, it raised an error, or returned something else.
    """
    with needs("export"):
        from tfexport.export.artifacts.keywords import ExportKeywords
        from tfexport.export.named_code import load_named, one_line
    factory = load_named(name, "module")
    try:
        found = factory()
    except Exception as error:
        raise ConfigError(f"--module: {name} raised {one_line(error)}.") from error
    if not isinstance(found, Mapping):
        raise ConfigError(
            f"--module: {name} returned {shown(found)}; expected a dict of export's arguments, "
            f"such as dict({', '.join(f'{key}=…' for key in _NEEDED)})."
        )
    known = {*_OF_EXPORT, "model", *ExportKeywords.__annotations__} - {*OF_CHECKPOINTS}
    example = "example" in found  # in place of the inputs
    missing = [key for key in _NEEDED if key not in found and not (example and key == "inputs")]
    problems = [f"{key!r} is missing" for key in missing]
    problems += [f"{shown(key)} is not an argument of export" for key in found if key not in known]
    if problems:
        subject = f"--module: {name} must return the arguments of export"
        raise ConfigError(join_problems(subject, problems))
    return dict(found)


def check_sources(checkpoint: str | None, module: str | None) -> None:
    """Refuse a call with neither or both of ``--checkpoint`` and ``--module``.

    Raises:
        click.UsageError: which it is.
    """
    if checkpoint is None and module is None:
        raise click.UsageError("Missing option '--checkpoint', or '--module' for a custom module.")
    if checkpoint is not None and module is not None:
        raise click.UsageError("--checkpoint and --module cannot be used together.")


def export_named_module(
    name: str, output: str, flags: Mapping[str, bool | str], options: Mapping[str, Any]
) -> None:
    """``tfexport onnx --module``.

    Args:
        name: the name of the factory.
        output: the bundle's folder, or a file.
        flags: ``verify``, ``force``, and ``pack`` if that was given.
        options: the options of the command line; those that were given replace the factory's.
    """
    refuse_others(options)
    arguments = read_factory(name)
    given = {key: options[key] for key in _TAKEN if options.get(key)}
    kind = kind_of(output, given.get("graph", arguments.get("graph")))
    used = {k: v for k, v in arguments.items() if k not in _OF_TEXT or takes(kind, k)}
    with needs("export"):
        from tfexport.export import export
    with _as_arguments(), plain_warnings(), progress_bar() as progress:
        made = export(output=output, **{**used, **given, **flags, "progress": progress})
    print_export(output, made)
    _print_found(made)


def _print_found(made: "ExportResult") -> None:
    """Print how many tensors were found in a module's forward, and what steps compute again."""
    for note in made.notes:
        click.echo(f"Note: {note}.", err=True)
    if made.layout == RECOGNISED:
        click.echo("Recognised: an ordinary Transformer, exported as such.", err=True)
    manifest = made.bundle_manifest
    if manifest is not None and manifest.states:
        click.echo("Recognised: the decoder of an ordinary Transformer.", err=True)
    module = None if manifest is None else manifest.module
    found = None if module is None else module.get("found")
    if found is None:
        return
    if not found["state"]:
        click.echo(
            f"No step was found in forward: {found['again'][0]}. Every token computes the "
            "complete prefix.",
            err=True,
        )
        return
    click.echo(
        f"Found in forward: {len(found['memory'])} tensors of memory, {len(found['state'])} of "
        "state; `tfexport inspect` lists them.",
        err=True,
    )
    for place in found["again"]:
        click.echo(f"Computed for all tokens in every step: {place}", err=True)


@contextlib.contextmanager
def _as_arguments() -> Iterator[None]:
    """Spell the arguments of a factory as Python does, and the options of the verb as flags."""
    try:
        yield
    except TfexportError as error:
        of_verb = {*_TAKEN, "force"}

        def written(option: Option) -> str:
            return spell(option) if option.name in of_verb else str(option)

        raise type(error)(error.message.spelled(written)) from error


def script_named_module(
    name: str, output: str, flags: Mapping[str, bool | str], steps: str | None
) -> None:
    """``tfexport torchscript --module``; ``flags`` are ``verify`` and ``force``."""
    arguments = read_factory(name) | ({} if steps is None else {"steps": steps})
    used = {k: v for k, v in arguments.items() if takes(TORCHSCRIPT, k)} | {"graph": TORCHSCRIPT}
    with needs("export"):
        from tfexport.export import export
    with _as_arguments(), progress_bar() as progress:
        made = export(output=output, **{**used, **flags, "progress": progress})
    from tfexport.cli.reports import print_result

    for note in made.notes:
        click.echo(f"Note: {note}.", err=True)
    print_result(output, made.size, made.report)


def verify_named_module(
    artifact: str, name: str, progress: Progress, options: dict[str, Any]
) -> "ParityReport":
    """``tfexport verify --module``."""
    arguments = read_factory(name)
    if (steps := options.pop("steps", None)) is not None:
        arguments["steps"] = steps
    with needs("export"):
        from tfexport.export import verify
    with _as_arguments():
        called = {key: arguments[key] for key in CALL if key in arguments}
        return verify(
            artifact, arguments["model"], examples=arguments.get("examples", ()), progress=progress,
            **called, **options,
        )  # fmt: skip


def refuse_others(options: Mapping[str, Any]) -> None:
    """Refuse options for checkpoints together with ``--module``.

    Raises:
        ConfigError: there are any; all are listed.
    """
    text = " applies to checkpoints; with --module, the function returns the arguments"
    problems = [
        Message(Option(name, value if isinstance(value, str) else None), text)
        for name, value in options.items()
        if value and name not in _TAKEN
    ]
    if problems:
        raise ConfigError(join_problems("options", problems))
