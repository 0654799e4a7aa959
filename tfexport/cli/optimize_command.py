"""``tfexport optimize``."""

import click

from tfexport.cli.console import human_size


@click.command(short_help="Pack a bundle's weights for this machine's native engine.")
@click.argument("bundle", type=click.Path())
@click.option("--force", is_flag=True, help="Replace the packed file if it exists.")
def optimize(bundle: str, force: bool) -> None:
    """Write BUNDLE's weights as the native engine needs them on this machine, beside BUNDLE.

    Whoever opens the bundle then maps that file instead of packing; processes share the memory.
    The file is for one instruction set and one state of the bundle; any other is not used.

    \b
    tfexport optimize de-en.bundle
    """
    from tfexport.runtime.model.native_engine import pack_weights

    path = pack_weights(bundle, force)
    click.echo(f"{path}: {human_size(path.stat().st_size)}")
