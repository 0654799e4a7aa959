"""``tfexport --version``."""

import click


def print_version(ctx: click.Context, option: click.Parameter, asked: bool) -> None:
    """A callback of click: print the versions and end."""
    if not asked or ctx.resilient_parsing:
        return
    import tfexport
    from tfexport.runtime.benchmark import onnxruntime_version
    from tfexport.runtime.model import native_engine
    from tfexport.runtime.parallel.cpu import instruction_set

    click.echo(f"tfexport, version {tfexport.__version__}")
    click.echo(f"onnxruntime {onnxruntime_version()}, {instruction_set()}")
    click.echo(native_engine.describe())
    ctx.exit()
