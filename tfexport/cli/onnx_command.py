"""``tfexport onnx``."""

from typing import TYPE_CHECKING, Any

import click

from tfexport.cli.console import (
    checkpoint_options,
    expect_option,
    needs,
    no_pack_option,
    plain_warnings,
    progress_bar,
    reference_option,
    verify_options,
)
from tfexport.cli.decoding_options import language_options
from tfexport.cli.module_option import MODULE, STEPS_OPTION, check_sources, export_named_module
from tfexport.cli.quantize_command import accept_loss_option, print_export

if TYPE_CHECKING:
    from tfexport.export import ExportResult


@click.command(short_help="Export a checkpoint to a bundle and compare it with eager PyTorch.")
@click.option("--checkpoint", type=click.Path(), help="File or folder to export.")
@MODULE
@STEPS_OPTION
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(),
    help="Folder of the bundle, or --graph file.",
)
@checkpoint_options
@reference_option
@click.option(
    "--tokenizer",
    type=click.Path(),
    help="Tokenizer for both sides: a tokenizer.json, a SentencePiece .model, a list of words, "
    "one per line, or a vocabulary (JSON, pickle, torchtext; FILE:KEY for one of several). "
    "Default: the one next to the checkpoint, if there is one.",
)
@click.option("--source-tokenizer", type=click.Path(), help="Tokenizer for the source side.")
@click.option("--target-tokenizer", type=click.Path(), help="Tokenizer for the target side.")
@click.option(
    "--split",
    metavar="HOW",
    help="How text is split into the words of a list or vocabulary: whitespace, basic_english "
    "(torchtext's), characters, or spacy:LANGUAGE, such as spacy:de.",
)
@click.option("--source-split", metavar="HOW", help="How source text is split.")
@click.option("--target-split", metavar="HOW", help="How target text is split.")
@click.option(
    "--reads",
    type=click.Choice(["sentences", "texts"]),
    help="Unit that a server passes to the model. Use texts for a model that summarises or that "
    "reads a task prefix. Default: what the model's family was trained on.",
)
@click.option(
    "--graph",
    type=click.Choice(["generate", "forward"]),
    help="Write one self-contained file instead of a bundle: generate decodes greedily in one "
    "call; forward scores a complete target at once and needs neither special ids nor embeddings.",
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
    "output_attentions",
    is_flag=True,
    help="Make the cross-attention weights an output of generate.onnx.",
)
@click.option(
    "--text",
    is_flag=True,
    help="With --graph generate: text in and text out, through onnxruntime-extensions. The "
    "tokenizer must be one that it reproduces exactly.",
)
@click.option(
    "--samples",
    type=click.Path(),
    metavar="FILE",
    help="Real source texts (or ids), one per line, or an .npz of rows. A bundle is also compared "
    "on these. With --text: additional lines on which the tokenizer is compared. With --quantize: "
    "each line has a tab and a reference translation, to check the quality.",
)
@expect_option
@language_options
@click.option(
    "--quantize",
    type=click.Choice(["int8", "int4", "bf16"]),
    help="Quantise the weights after the comparison with eager PyTorch; see quantize.",
)
@accept_loss_option
@click.option(
    "--portable",
    is_flag=True,
    help="Standard ONNX operators only, for other runtimes and for onnxruntime back to 1.18. "
    "Default: onnxruntime's own attention.",
)
@click.option(
    "--opset", type=click.IntRange(18, 25), help="ONNX opset. Default: 22, and 20 with --portable."
)
@verify_options
@no_pack_option
@click.option("--force", is_flag=True, help="Replace a bundle that exists.")
def onnx(
    checkpoint: str | None,
    module: str | None,
    output: str,
    verify: str,
    no_verify: bool,
    no_pack: bool,
    force: bool,
    **options: Any,
) -> None:
    """Export a checkpoint to a bundle, then compare it with eager PyTorch.

    With --module, export any encoder-decoder module by its forward(source, target), or by the
    methods of docs/modules.md; it is compared with its own forward.

    If anything differs, the command fails and writes no bundle.

    \b
    tfexport onnx --checkpoint model.pt -o de-en.bundle --set num_heads=8 --set pad_id=1 \\
        --set bos_id=2 --set eos_id=3 --tokenizer tokenizer.json
    """
    from tfexport.export.artifacts.option_rules import TORCH_FILES, check_export, kind_of

    check_sources(checkpoint, module)
    level = "none" if no_verify else verify
    if kind_of(output, options["graph"]) in TORCH_FILES:
        written = "has the suffix of a torch file, which tfexport torchscript writes"
        raise click.UsageError(f"{output}: {written}. A bundle is a folder.")
    if module is not None:
        flags: dict[str, bool | str] = {"verify": level, "force": force}
        if no_pack:
            flags["pack"] = False
        export_named_module(module, output, flags, options)
        return
    check_export(output, options["graph"], options, force)  # before torch is loaded, a second
    with needs("export"):
        import torch  # noqa: F401 - so that torch is named first if several are missing

        from tfexport.export import export
    assert checkpoint is not None
    with plain_warnings(), progress_bar() as progress:
        made = export(
            checkpoint, output, verify=level, force=force, pack=not no_pack, progress=progress,
            **options,
        )  # fmt: skip
    if options["graph"] is None:
        _print_tokenizers(made)
        for note in made.notes:
            click.echo(f"Note: {note}.", err=True)
    print_export(output, made)


def _print_tokenizers(made: "ExportResult") -> None:
    for path in made.tokenizers:
        click.echo(f"tokenizer: {path}", err=True)
    if not made.tokenizers:
        click.echo("no tokenizer: the bundle takes and returns ids (translate --ids)", err=True)
