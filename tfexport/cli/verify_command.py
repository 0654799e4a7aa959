"""``tfexport verify``."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import click

from tfexport.cli.console import (
    checkpoint_options,
    expect_option,
    needs,
    progress_bar,
    reference_option,
    spell,
)
from tfexport.cli.decoding_options import language_options
from tfexport.cli.module_option import (
    MODULE,
    STEPS_OPTION,
    check_sources,
    refuse_others,
    verify_named_module,
)


@click.command(short_help="Compare a bundle or file with the checkpoint it was exported from.")
@click.argument("artifact", type=click.Path())
@click.option("--checkpoint", type=click.Path(), help="Checkpoint that ARTIFACT was exported from.")
@MODULE
@STEPS_OPTION
@checkpoint_options
@reference_option
@click.option(
    "--samples",
    type=click.Path(),
    metavar="FILE",
    help="Real source texts, one per line, or ids for a model that takes ids, or an .npz of rows: "
    "also compared.",
)
@expect_option
@language_options
@click.option(
    "--level",
    type=click.Choice(["full", "quick"]),
    default="full",
    show_default=True,
    help="How much is compared. quick: one random batch, and the real inputs if any.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option(
    "--report", type=click.Path(), metavar="FILE.html", help="Also write the report as a page."
)
@click.pass_context
def verify(
    ctx: click.Context,
    /,
    artifact: str,
    checkpoint: str | None,
    module: str | None,
    as_json: bool,
    report: str | None,
    level: str,
    **options: Any,
) -> None:
    """Compare a bundle, a single graph or a torch file with eager PyTorch on its checkpoint.

    Compared are encoder states, logits of a full prefix, logits of cached steps, greedy tokens and
    scores, over a grid of shapes, as far as they are outputs of the artifact. Exit status 1 if
    anything differs.

    \b
    tfexport verify de-en.bundle --checkpoint model.pt
    """
    from tfexport.atomic import check_new_file

    check_sources(checkpoint, module)
    if report is not None:
        check_new_file(report, force=True)  # before the comparison, which takes a while
    with needs("export"):
        import torch  # noqa: F401 - so that torch is named first if several are missing

        from tfexport.cli.reports import print_parity, print_remarks, save_report, verdict
        from tfexport.export import verify as compare
    from tfexport.runtime.benchmark import of_artifact

    with progress_bar() as progress:
        if module is not None:
            real = {name: options.pop(name) for name in ("samples", "expect", "steps")}
            real["level"] = level
            refuse_others(options)
            result = verify_named_module(artifact, module, progress, real)
        else:
            assert checkpoint is not None
            result = compare(artifact, checkpoint, progress=progress, level=level, **options)
    # Comparisons run in one thread.
    libraries = {"torch": result.summary()["torch"]}
    signed = of_artifact(artifact, "auto", threads=1, libraries=libraries)
    if result.compared_native:
        signed = dataclasses.replace(signed, engine="onnxruntime+native")
    elif Path(artifact).is_file() and not artifact.endswith(".onnx"):
        signed = dataclasses.replace(signed, engine="torch")
    signature = str(signed)
    if report is not None:
        save_report(result, artifact, signature, report)
    if as_json:
        click.echo(json.dumps({**result.to_dict(), "signature": signature}, indent=2))
    else:
        click.echo(f"{artifact}: {verdict(result)}")
        if (failure := result.failure()) is not None:
            click.echo(failure.spelled(spell))
        print_parity(result, artifact)
        print_remarks(result)
        click.echo(f"signature: {signature}")
    if not result.passed:
        ctx.exit(1)
