"""``tfexport demo``."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tfexport.cli.console import human_size, needs, progress_bar

if TYPE_CHECKING:
    from tfexport.cli.demo import DemoFiles, TorchFree
    from tfexport.export import ExportResult

SHOWN = 8  # sentences
_WITH_TORCH = ("torch", "safetensors", "tokenizers")
_WITHOUT_TORCH = ("numpy", "onnxruntime", "click", "rich", "tokenizers")


@click.command(short_help="Export, compare and translate with the repository's demo model.")
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
    """Export the German-English demo model, compare it, and translate without torch.

    Prints translations beside their references with BLEU, and what torch costs: size on disk and
    time to the first translation, with and without it.
    """
    from tfexport.cli.demo import TorchFree, find_demo

    files = find_demo(model)
    torch_free = TorchFree(runtime_python)
    with needs("export"):
        import sacrebleu  # noqa: F401 - a missing one is reported before the export begins
    exported = _export(files, output)
    _translate(files, Path(output), torch_free)
    _compare_costs(files, exported, torch_free)
    click.echo(f'Try: echo "Wo ist der Bahnhof?" | tfexport translate {output}')


def _export(files: "DemoFiles", output: str) -> "ExportResult":
    """Export the checkpoint to a bundle and print the comparison with eager PyTorch."""
    with needs("export"):
        from tfexport.cli.tables import print_parity, verdict
        from tfexport.export import export_bundle

    click.echo(f"1. Export {files.model} to {output} and compare with eager PyTorch\n")
    with progress_bar() as tell:
        exported = export_bundle(files.model, output, force=True, progress=tell)
    assert exported.report is not None
    print_parity(exported.report, output)
    click.echo(f"{output}: {verdict(exported.report)}\n")
    return exported


def _translate(files: "DemoFiles", bundle: Path, torch_free: "TorchFree") -> None:
    """Translate the test set and print some of it, with BLEU and chrF of all."""
    import sacrebleu
    from rich.table import Table

    from tfexport.cli.tables import print_table

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


def _compare_costs(files: "DemoFiles", exported: "ExportResult", torch_free: "TorchFree") -> None:
    """Print sizes on disk and start times, with torch and without."""
    from rich.table import Table

    from tfexport.cli.demo import bundle_size, installed_size, seconds_with_torch
    from tfexport.cli.tables import print_table

    click.echo("3. What torch costs\n")
    with progress_bar() as tell:
        tell("timing the start of both", 0, 1)
        line = files.sources[0]
        without = torch_free.seconds_to_first_line(exported.path, line)
        with_torch = seconds_with_torch(files.model, line)
    costs = Table()
    for column in ("", "with torch", "without"):
        costs.add_column(column, justify="left" if not column else "right")
    costs.add_row(
        "installed packages",
        human_size(installed_size(_WITH_TORCH)),
        human_size(installed_size(_WITHOUT_TORCH)),
    )
    costs.add_row(
        "model on disk (fp32)",
        human_size(sum(t.numel() * 4 for t in exported.checkpoint.state_dict.values())),
        human_size(bundle_size(exported.path)),
    )
    costs.add_row("process start to first translation", f"{with_torch:.2f} s", f"{without:.2f} s")
    print_table(costs)
