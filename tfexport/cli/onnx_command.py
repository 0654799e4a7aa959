"""``tfexport onnx``."""

from pathlib import Path
from typing import Any

import click

from tfexport.cli.console import checkpoint_options, needs, print_result, progress_bar
from tfexport.cli.quantize_command import print_quantized
from tfexport.errors import InputError


@click.command(short_help="Export a checkpoint to a bundle and prove it equal to eager PyTorch.")
@click.option("--checkpoint", required=True, type=click.Path(), help="File or folder to export.")
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(),
    help="Folder of the bundle, or --graph file.",
)
@checkpoint_options
@click.option(
    "--tokenizer",
    type=click.Path(),
    help="Tokenizer for both sides: a tokenizer.json, a SentencePiece .model, or a list of words, "
    "one a line. Default: the one beside the checkpoint, if there is one.",
)
@click.option("--source-tokenizer", type=click.Path(), help="Tokenizer for the source side.")
@click.option("--target-tokenizer", type=click.Path(), help="Tokenizer for the target side.")
@click.option(
    "--graph",
    type=click.Choice(["generate", "forward"]),
    help="Write one self-contained file instead of a bundle: generate decodes greedily in one "
    "call; forward scores a whole target at once and needs neither special ids nor embeddings.",
)
@click.option(
    "--attention-biases",
    is_flag=True,
    help="With --graph forward: three more inputs, added to the attention scores.",
)
@click.option(
    "--log-probs", is_flag=True, help="With --graph forward: log-probabilities as a second output."
)
@click.option(
    "--attention",
    is_flag=True,
    help="Let generate.onnx, in a bundle or alone, give the cross-attention weights too.",
)
@click.option(
    "--text",
    is_flag=True,
    help="With --graph generate: text in and text out, through onnxruntime-extensions; only with a "
    "tokenizer that it reproduces exactly.",
)
@click.option(
    "--samples",
    type=click.Path(),
    metavar="FILE",
    help="With --text: lines on which the tokenizer is compared, besides a built-in selection. "
    "With --quantize: texts (or ids), a reference behind a tab, on which the weights are.",
)
@click.option(
    "--quantize",
    type=click.Choice(["int8", "int4"]),
    help="Smaller weights, quantised after the comparison with eager PyTorch; see quantize.",
)
@click.option(
    "--portable",
    is_flag=True,
    help="Standard ONNX operators only, for other runtimes and for onnxruntime back to 1.18. "
    "Default: onnxruntime's own attention.",
)
@click.option("--opset", type=click.IntRange(18, 25), help="Default: 22, and 20 with --portable.")
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
    graph: str | None,
    attention_biases: bool,
    log_probs: bool,
    attention: bool,
    text: bool,
    samples: str | None,
    quantize: str | None,
    portable: bool,
    opset: int | None,
    no_verify: bool,
    force: bool,
) -> None:
    """Export a checkpoint to a bundle, then compare it with eager PyTorch.

    If anything differs, the command fails and no bundle is left behind.

    \b
    tfexport onnx --checkpoint model.pt -o de-en.bundle --set num_heads=8 --set pad_id=1 \\
        --set bos_id=2 --set eos_id=3 --tokenizer tokenizer.json
    """
    from tfexport.atomic import check_new_file
    from tfexport.bundle import check_output

    _check_choice(output, graph, attention_biases or log_probs, attention)
    tokenizers = [tokenizer, source_tokenizer, target_tokenizer]
    _check_quantize(quantize, graph, portable)
    _check_text(graph, text, quantize, samples is not None, any(tokenizers))
    lines = _read_samples(samples) if samples is not None and text else []
    # Before torch is loaded, which takes a second.
    (check_output if graph is None else check_new_file)(output, force)
    with needs("export"):
        from tfexport.export import export_bundle, export_graph
    with progress_bar() as tell:
        shared: dict[str, Any] = {
            "config": config,
            "settings": settings,
            "layout": layout,
            "attention": attention,
            "tokenizer": tokenizer,
            "source_tokenizer": source_tokenizer,
            "target_tokenizer": target_tokenizer,
            "opset": opset,
            "portable": portable,
            "verify": not no_verify,
            "force": force,
            "progress": tell,
        }
        if quantize is not None and graph is not None:
            from tfexport.export import export_quantized_graph

            written, judged = export_quantized_graph(
                checkpoint, output, quantize, samples=samples, text=text,
                text_samples=[line.partition("\t")[0] for line in lines], **shared,
            )  # fmt: skip
        elif graph is not None:
            written = export_graph(
                checkpoint,
                output,
                graph,
                attention_biases=attention_biases,
                log_probs=log_probs,
                text=text,
                samples=lines,
                **shared,
            )
        elif quantize is not None:
            from tfexport.export import export_quantized_bundle

            result, made = export_quantized_bundle(
                checkpoint, output, quantize, samples=samples, **shared
            )
        else:
            result = export_bundle(
                checkpoint,
                output,
                **shared,
            )
    if graph is not None:
        size = Path(output).stat().st_size
        if quantize is None:
            print_result(output, size, written.report)
        else:
            print_result(f"{output}, before quantising", None, written.report)
            print_quantized(output, size, quantize, judged)
        return
    for path in result.tokenizers:
        click.echo(f"tokenizer: {path}", err=True)
    if not result.tokenizers:
        click.echo("no tokenizer: the bundle takes and gives ids only (translate --ids)", err=True)
    size = sum(entry.size for entry in result.manifest.files.values())
    print_result(f"{output}, before quantising" if quantize else output, size, result.report)
    if quantize is not None:
        print_quantized(output, made.size, quantize, made)


def _check_choice(output: str, graph: str | None, forward_only: bool, attention: bool) -> None:
    if graph != "forward" and forward_only:
        raise click.UsageError("--attention-biases and --log-probs go with --graph forward.")
    if graph == "forward" and attention:
        raise click.UsageError("--attention goes with a bundle or with --graph generate.")
    if graph is None and output.endswith(".onnx"):
        raise click.UsageError(
            f"{output}: a bundle is a folder. Name a folder, or one graph with --graph."
        )


def _check_quantize(quantize: str | None, graph: str | None, portable: bool) -> None:
    if quantize is not None and graph == "forward":
        raise click.UsageError("--quantize goes with a bundle or with --graph generate.")
    if quantize is not None and portable:
        raise click.UsageError(
            "--quantize takes onnxruntime's own operators; leave --portable out."
        )


def _check_text(
    graph: str | None, text: bool, quantize: str | None, samples: bool, tokenizers: bool
) -> None:
    if text and graph != "generate":
        raise click.UsageError("--text goes with --graph generate.")
    if samples and not text and quantize is None:
        raise click.UsageError("--samples goes with --text or --quantize.")
    # Samples to quantise by are text as well.
    if graph is not None and not text and tokenizers and not (quantize and samples):
        raise click.UsageError("a graph of ids holds no tokenizer; leave --tokenizer out.")


def _read_samples(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text.") from None
