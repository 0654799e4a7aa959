"""``tfexport optimize``."""

import click

from tfexport.cli.console import human_size


@click.command(short_help="Pack a bundle's weights for this machine's native engine.")
@click.argument("bundle", type=click.Path())
@click.option(
    "--force", is_flag=True, help="Replace a file of that name that holds no packed weights."
)
def optimize(bundle: str, force: bool) -> None:
    """Write BUNDLE's weights as the native engine needs them on this machine, next to BUNDLE.

    The bundle then opens faster: the file is mapped, and processes share its memory. It is used
    only on machines with the same instruction set, and only while the bundle is unchanged.
    Matrices whose values bfloat16 or float16 can all hold, as those of a checkpoint in half
    precision, are packed in 16 bits; results are the same to the last bit.

    \b
    tfexport optimize de-en.bundle
    """
    from tfexport.runtime.model.native_engine import pack_weights

    path = pack_weights(bundle, force)
    click.echo(f"{path}: {human_size(path.stat().st_size)}")
