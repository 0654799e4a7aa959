"""``tfexport onnx``."""

import click

from tfexport.cli.console import checkpoint_options, human_size, needs, progress_bar


@click.command(short_help="Export a checkpoint to a bundle and prove it equal to eager PyTorch.")
@click.option("--checkpoint", required=True, type=click.Path(), help="File or folder to export.")
@click.option("-o", "--output", required=True, type=click.Path(), help="Bundle folder to write.")
@checkpoint_options
@click.option(
    "--tokenizer",
    type=click.Path(),
    help="Tokenizer for both sides: a tokenizer.json, a SentencePiece .model, or a list of words, "
    "one a line. Default: the one beside the checkpoint, if there is one.",
)
@click.option("--source-tokenizer", type=click.Path(), help="Tokenizer for the source side.")
@click.option("--target-tokenizer", type=click.Path(), help="Tokenizer for the target side.")
@click.option("--opset", type=click.IntRange(18, 25), default=20, show_default=True)
@click.option("--no-verify", is_flag=True, help="Skip the comparison with eager PyTorch.")
@click.option("--force", is_flag=True, help="Replace a bundle that exists.")
def onnx(
    checkpoint: str,
    output: str,
    config: str | None,
    settings: tuple[str, ...],
    layout: str | None,
    tokenizer: str | None,
    source_tokenizer: str | None,
    target_tokenizer: str | None,
    opset: int,
    no_verify: bool,
    force: bool,
) -> None:
    r"""Export a checkpoint to a bundle, then compare it with eager PyTorch.

    If anything differs, the command fails and no bundle is left behind.

    \b
    tfexport onnx --checkpoint model.pt -o de-en.bundle --set num_heads=8 --set pad_id=1 \\
        --set bos_id=2 --set eos_id=3 --tokenizer tokenizer.json
    """
    from tfexport.bundle import check_output

    check_output(output, force)  # before torch is loaded, which takes a second
    with needs("export"):
        from tfexport.cli.tables import parity_table, print_table, verdict
        from tfexport.export import export_bundle
    with progress_bar() as tell:
        result = export_bundle(
            checkpoint,
            output,
            config=config,
            settings=settings,
            layout=layout,
            tokenizer=tokenizer,
            source_tokenizer=source_tokenizer,
            target_tokenizer=target_tokenizer,
            opset=opset,
            verify=not no_verify,
            force=force,
            progress=tell,
        )
    for path in result.tokenizers:
        click.echo(f"tokenizer: {path}", err=True)
    if not result.tokenizers:
        click.echo("no tokenizer: the bundle takes and gives ids only (translate --ids)", err=True)
    size = human_size(sum(entry.size for entry in result.manifest.files.values()))
    proof = "not compared with eager PyTorch (--no-verify)"
    if result.report is not None:
        print_table(parity_table(result.report, output), stderr=True)
        proof = verdict(result.report)
    click.echo(f"{output}: {size}, {proof}")
