"""``tfexport demo``."""

from pathlib import Path

import click

from tfexport.cli.console import human_size, needs, progress_bar

SHOWN = 8


@click.command(short_help="Show the whole way on the model that ships with the repository.")
@click.option("--model", type=click.Path(), help="Folder with a checkpoint and a test.tsv.")
@click.option(
    "-o", "--output", type=click.Path(), default="de-en.bundle", show_default=True,
    help="Bundle to write; one that exists is replaced.",
)  # fmt: skip
@click.option(
    "--runtime-python",
    metavar="PYTHON",
    help="Python of an environment without torch to decode in. Default: this one, torch blocked.",
)
def demo(model: str | None, output: str, runtime_python: str | None) -> None:
    """Export the German-English demo model, prove it equal, and translate without torch.

    Prints translations beside their references with BLEU, and what torch costs: size on disk and
    time to the first translation, with and without it.
    """
    from tfexport.cli import demo as steps

    files = steps.find_demo(model)
    torch_free = steps.TorchFree(runtime_python)
    with needs("export"):
        import sacrebleu
        from rich.table import Table

        from tfexport.cli.tables import parity_table, print_table, verdict
        from tfexport.export import export_bundle
    bundle = Path(output)
    click.echo(f"1. Export {files.model} to {output} and compare with eager PyTorch\n")
    with progress_bar() as tell:
        result = export_bundle(files.model, bundle, force=True, progress=tell)
    assert result.report is not None
    print_table(parity_table(result.report, output))
    click.echo(f"{output}: {verdict(result.report)}\n")

    click.echo(f"2. Translate {len(files.sources)} test sentences in {torch_free.title}\n")
    with progress_bar() as tell:
        tell("translating", 0, 1)
        translations = torch_free.translate(bundle, files.sources)
    samples = Table()
    for column in ("German", "tfexport, without torch", "reference"):
        samples.add_column(column)
    stride = max(1, len(files.sources) // SHOWN)
    rows = zip(files.sources, translations, files.references, strict=True)
    for row in list(rows)[::stride][:SHOWN]:
        samples.add_row(*row)
    print_table(samples)
    bleu = sacrebleu.corpus_bleu(translations, [files.references])
    chrf = sacrebleu.corpus_chrf(translations, [files.references])
    click.echo(f"BLEU {bleu.score:.1f}, chrF {chrf.score:.1f} on {len(translations)} sentences\n")

    click.echo("3. What torch costs\n")
    with progress_bar() as tell:
        tell("timing the start of both", 0, 1)
        line = files.sources[0]
        without = torch_free.seconds_to_first_line(bundle, line)
        with_torch = steps.seconds_with_torch(files.model, line)
    costs = Table()
    for column in ("", "with torch", "without"):
        costs.add_column(column, justify="left" if not column else "right")
    costs.add_row(
        "installed packages",
        human_size(steps.installed_size(["torch", "safetensors", "tokenizers"])),
        human_size(steps.installed_size(["numpy", "onnxruntime", "click", "rich", "tokenizers"])),
    )
    costs.add_row(
        "model on disk (fp32)",
        human_size(sum(t.numel() * 4 for t in result.checkpoint.state_dict.values())),
        human_size(steps.bundle_size(bundle)),
    )
    costs.add_row("process start to first translation", f"{with_torch:.2f} s", f"{without:.2f} s")
    print_table(costs)
    click.echo(f'Try: echo "Wo ist der Bahnhof?" | tfexport translate {output}')
