"""``tfexport quantize``."""

from typing import TYPE_CHECKING, Any

import click

from tfexport.bundle import check_output
from tfexport.cli.console import human_size, needs, no_pack_option, plain_warnings, progress_bar
from tfexport.cli.decoding_options import language_options

if TYPE_CHECKING:
    from tfexport.export import ExportResult


accept_loss_option = click.option(
    "--accept-loss",
    is_flag=True,
    help="Write quantised weights even if the quality check fails. The bundle records it.",
)


@click.command(short_help="Make a bundle with int8, int4 or bf16 weights. Needs no torch.")
@click.argument("bundle", type=click.Path())
@click.option("-o", "--output", required=True, type=click.Path(), help="The new bundle's folder.")
@click.option("--weights", type=click.Choice(["int8", "int4", "bf16"]), default="int8",
              show_default=True, help="Type of the quantised weights. int8 takes a quarter of the "
              "size; int4 takes an eighth for the matrices; bf16 takes half of the memory in the "
              "native engine, and the same size on disk.")  # fmt: skip
@click.option("--samples", type=click.Path(exists=True, dir_okay=False), metavar="FILE",
              help="Lines of text (or ids, or names of sounds or pictures), each with a tab and a "
              "reference if there is one. "
              "Compare with the original on these, and fail if too much changes.")  # fmt: skip
@language_options
@accept_loss_option
@no_pack_option
@click.option("--force", is_flag=True, help="Replace the output if it is a bundle.")
def quantize(
    bundle: str, output: str, weights: str, force: bool, no_pack: bool, **options: Any
) -> None:  # fmt: skip
    """Write a copy of BUNDLE with quantised weights.

    With --samples, the copy has to predict the original's next token at 97 % of the positions, and
    may lose at most 0.3 BLEU; of sounds or pictures with their texts, at 90 %, and lose at most 0.5
    points of word errors. If needed, the parameters that change the predictions most stay float32.
    Without --samples a bundle that reads sound or pictures is compared on built-in ones; of others
    there is no comparison, and a warning.

    \b
    tfexport quantize de-en.bundle -o de-en-int8.bundle --samples test.tsv
    """
    check_output(output, force)
    with needs("quantize"):
        from tfexport.export import quantize as quantize_bundle
    with plain_warnings(), progress_bar() as progress:
        result = quantize_bundle(
            bundle, output, weights, force=force, pack=not no_pack, progress=progress, **options
        )  # fmt: skip
    print_quantized(output, result)


def print_export(output: str, made: "ExportResult") -> None:
    """Print the size of what was exported and the result of its comparisons."""
    from tfexport.cli.reports import print_result

    if made.weights == "float32":
        print_result(output, made.size, made.report)
        return
    print_result(f"{output}, before quantising", made.float32_size, made.report)
    print_quantized(output, made)


def print_quantized(output: str, made: "ExportResult") -> None:
    """Print the size of a quantised output, and how far it differs from the original."""
    if made.kept:
        click.echo(f"left in float32: {', '.join(made.kept)}", err=True)
    if made.quality is None:
        click.echo(
            "Quality not checked. Give --samples to compare the weights with the original.",
            err=True,
        )
    elif not made.quality.passed:
        click.echo(f"The quality check failed: expected {made.quality.limits}.", err=True)
    verdict = made.quality or "not compared with the original"
    click.echo(f"{output}: {human_size(made.size)}, {made.weights} weights, {verdict}")
