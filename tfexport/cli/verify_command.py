"""``tfexport verify``."""

import json
from typing import Any

import click

from tfexport.cli.console import (
    checkpoint_options,
    needs,
    print_own_code,
    progress_bar,
    reference_option,
)
from tfexport.cli.module_option import MODULE, check_sources, refuse_others, verify_named_module
from tfexport.cli.spelling import spell


@click.command(short_help="Compare a bundle or file with the checkpoint it was exported from.")
@click.argument("artifact", type=click.Path())
@click.option("--checkpoint", type=click.Path(), help="What it was exported from.")
@MODULE
@checkpoint_options
@reference_option
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--report", type=click.Path(), metavar="FILE.html", help="Also write it as a page.")
@click.pass_context
def verify(
    ctx: click.Context,
    /,
    artifact: str,
    checkpoint: str | None,
    module: str | None,
    as_json: bool,
    report: str | None,
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
        from tfexport.cli.tables import parity_table, print_table, save_html, verdict
        from tfexport.export import verify_artifact
    with progress_bar() as tell:
        if module is not None:
            refuse_others(options)
            result = verify_named_module(artifact, module, tell)
        else:
            assert checkpoint is not None
            result = verify_artifact(artifact, checkpoint, progress=tell, **options)
    table = parity_table(result, artifact)
    if report is not None:
        notes = [] if result.own_code is None else [result.own_code.spelled(spell)]
        save_html(table, report, "\n".join([f"{artifact}: {verdict(result)}", *notes]))
    if as_json:
        click.echo(json.dumps(result.to_dict(), indent=2))
    else:
        print_table(table)
        print_own_code(result)
        click.echo(f"{artifact}: {verdict(result)}")
    if not result.passed:
        ctx.exit(1)
