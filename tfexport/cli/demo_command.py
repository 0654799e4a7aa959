"""``tfexport demo``."""

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tfexport.cli.console import human_size, needs, progress_bar
from tfexport.errors import ConfigError, TfexportError

if TYPE_CHECKING:
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

    Prints translations with their references and BLEU, and what torch costs: size on disk and time
    to the first translation, with and without it.
    """
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
        from tfexport.cli.reports import print_parity, verdict
        from tfexport.export import export

    click.echo(f"1. Export {files.model} to {output} and compare with eager PyTorch\n")
    with progress_bar() as progress:
        exported = export(files.model, output, force=True, progress=progress)
    assert exported.report is not None
    print_parity(exported.report, output)
    click.echo(f"{output}: {verdict(exported.report)}\n")
    return exported


def _translate(files: "DemoFiles", bundle: Path, torch_free: "TorchFree") -> None:
    """Translate the test set and print some of it, with BLEU and chrF of all."""
    import sacrebleu
    from rich.table import Table

    from tfexport.cli.reports import print_table

    click.echo(f"2. Translate {len(files.sources)} test sentences in {torch_free.title}\n")
    with progress_bar() as progress:
        progress("translating", 0, 1)
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

    from tfexport.cli.reports import print_table
    from tfexport.model_src import load_checkpoint

    click.echo("3. What torch costs\n")
    with progress_bar() as progress:
        progress("timing the start of both", 0, 1)
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
        human_size(sum(t.numel() * 4 for t in load_checkpoint(files.model).state_dict.values())),
        human_size(bundle_size(exported.path)),
    )
    costs.add_row("process start to first translation", f"{with_torch:.2f} s", f"{without:.2f} s")
    print_table(costs)


START_RUNS = 3
DEMO = "examples/de-en"
_BLOCKED = (
    "import sys; sys.modules.update(dict.fromkeys(('torch', 'onnx'))); "
    "from tfexport.cli.main import main; main()"
)


@dataclass(frozen=True)
class DemoFiles:
    """A demo model's folder, and the sentence pairs of its test set."""

    model: Path
    sources: list[str]
    references: list[str]


def find_demo(folder: str | None) -> DemoFiles:
    """Read a demo model's folder: a checkpoint and a ``test.tsv`` of source TAB reference.

    Args:
        folder: None for the repository's: in the current folder, else in the clone that this
            package runs in.

    Raises:
        ConfigError: the folder holds no ``test.tsv``.
    """
    here = Path(DEMO)
    paths = [Path(folder)] if folder else [here, Path(__file__).resolve().parents[2] / here]
    found = [path for path in paths if (path / "test.tsv").is_file()]
    if not found:
        raise ConfigError(
            f"{paths[0] / 'test.tsv'}: no such file. The demo's model ships with the repository, "
            "not with the installed package: run this in the folder of a clone, or name a folder "
            "of a checkpoint and a test.tsv with --model."
        )
    path, test = found[0], found[0] / "test.tsv"
    pairs = [line.split("\t") for line in test.read_text(encoding="utf-8").splitlines()]
    return DemoFiles(path, [pair[0] for pair in pairs], [pair[1] for pair in pairs])


class TorchFree:
    """A Python interpreter in which torch cannot be imported."""

    def __init__(self, python: str | None) -> None:
        self._command = [sys.executable, "-c", _BLOCKED]
        self.title = "this environment, torch blocked"
        if python is not None:
            probe = subprocess.run([python, "-c", "import torch"], capture_output=True)
            if probe.returncode == 0:
                raise ConfigError(f"--runtime-python: torch can be imported in {python}.")
            self._command = [python, "-m", "tfexport"]
            self.title = "an environment without torch"

    def translate(self, bundle: Path, lines: Sequence[str]) -> list[str]:
        """Run ``tfexport translate`` on lines.

        Raises:
            TfexportError: it failed.
        """
        done = subprocess.run(
            [*self._command, "translate", str(bundle)],
            input="".join(f"{line}\n" for line in lines).encode(),
            capture_output=True,
        )
        if done.returncode:
            raise TfexportError(f"tfexport translate failed: {done.stderr.decode().strip()}")
        return done.stdout.decode().split("\n")[:-1]

    def seconds_to_first_line(self, bundle: Path, line: str) -> float:
        """Median time of a process that starts, translates one line and ends."""
        return _median_seconds(lambda: self.translate(bundle, [line]))


def seconds_with_torch(model: Path, line: str) -> float:
    """The same time with eager PyTorch: load the checkpoint, decode with nn.Transformer."""
    code = (
        "import sys; from tfexport.cli.demo_command import print_eager; "
        "print_eager(sys.argv[1], sys.argv[2])"
    )
    command = [sys.executable, "-c", code, str(model), line]
    return _median_seconds(lambda: subprocess.run(command, check=True, capture_output=True))


def print_eager(model: str, line: str) -> None:
    """Translate one line with eager PyTorch, greedily and without a cache, and print it."""
    import torch

    from tfexport.export.reference import StockReference
    from tfexport.export.text.tokenizer_files import choose_tokenizers, encode_source, kind_of
    from tfexport.model_src import load_checkpoint
    from tfexport.runtime.text.tokenizer import load_tokenizer

    checkpoint = load_checkpoint(model)
    reference = StockReference(checkpoint)
    config = checkpoint.config
    file = choose_tokenizers(None, None, None, folder=Path(model)).source
    assert file is not None
    tokenizer = load_tokenizer(file, kind_of(file), config.source_vocab_size or 0, config.unk_id)
    ids = torch.tensor([encode_source(line, tokenizer, config)])
    mask = torch.ones_like(ids)
    hidden = reference.encode(ids, mask)
    prefix = torch.tensor([[config.special_ids.decoder_start]])
    for _ in range(60):
        token = reference.decode(hidden, mask, prefix)[:, -1].argmax(-1, keepdim=True)
        if int(token) == config.special_ids.eos:
            break
        prefix = torch.cat([prefix, token], dim=1)
    print(tokenizer.decode(prefix[0, 1:].tolist()))


def _median_seconds(run: Callable[[], object]) -> float:
    seconds = []
    for _ in range(START_RUNS):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return sorted(seconds)[len(seconds) // 2]


def installed_size(requirements: Iterable[str]) -> int:
    """Bytes on disk of installed packages and all their dependencies."""
    from importlib import metadata

    seen: set[str] = set()
    pending = list(requirements)
    total = 0
    while pending:
        name = re.sub(r"[-_.]+", "-", pending.pop()).lower()
        if name in seen:
            continue
        seen.add(name)
        try:
            package = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # needed on other operating systems only
        for file in package.files or ():
            located = Path(str(package.locate_file(file)))
            total += located.stat().st_size if located.is_file() else 0
        for requirement in package.requires or ():
            if "extra ==" not in requirement:
                found = re.match(r"[\w.-]+", requirement)
                pending += [found.group()] if found else []
    return total


def bundle_size(bundle: Path) -> int:
    """Bytes of a bundle's files."""
    return sum(path.stat().st_size for path in bundle.rglob("*") if path.is_file())
