"""The models that are measured: random ones of three sizes, and the demo's.

Random weights never end a row, so that every system writes the same number of tokens.
"""

import subprocess
from pathlib import Path

import torch

from benchmarks.configurations import OPTIMUM_PYTHON, REPOSITORY, Size
from tfexport.model_src import Transformer, TransformerConfig, load_checkpoint, save_checkpoint
from tfexport.model_src.build import build_transformer

DEMO = REPOSITORY / "examples" / "de-en"
NEVER = -1e4  # added to the logit of the end token


OPUS = "opus"  # the shape of an OPUS-MT model, as a folder of Hugging Face
SIZES = {
    OPUS: Size(512, 6, 2048, 58_101),
    "small": Size(256, 3, 1024, 8_000),
    "base": Size(512, 6, 2048, 32_000),
}


def config_of(
    size: Size, pad_id: int = 0, bos_id: int = 1, eos_id: int = 2, unk_id: int = 3
) -> TransformerConfig:
    """Post-norm without final norms: what Marian is, and CTranslate2 expresses."""
    return TransformerConfig(
        d_model=size.d_model,
        num_heads=8,
        num_encoder_layers=size.layers,
        num_decoder_layers=size.layers,
        d_ff=size.d_ff,
        source_vocab_size=size.vocab_size,
        target_vocab_size=size.vocab_size,
        norm_placement="post",
        encoder_final_norm=False,
        decoder_final_norm=False,
        max_positions=256,
        pad_id=pad_id,
        bos_id=bos_id,
        eos_id=eos_id,
        unk_id=unk_id,
    )


def make_random(size: Size) -> Transformer:
    """A random model whose tokens differ from input to input and from step to step."""
    torch.manual_seed(0)
    model = build_transformer(config_of(size)).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            torch.nn.init.xavier_normal_(parameter)  # as trained weights are distributed
        if name.endswith("cross_attn.out_proj.weight"):
            parameter.mul_(3.0)  # listen to the source
        if "embedding" in name:
            torch.nn.init.normal_(parameter, std=size.d_model**-0.5)
    bias = model.output_proj.bias
    assert isinstance(bias, torch.Tensor)
    bias.zero_()
    bias[2] = NEVER
    return model


def prepare(name: str, folder: Path) -> Path:
    """Write everything that the systems load, unless it is there; the checkpoint's path."""
    from tfexport.export import export, quantize

    checkpoint = DEMO if name == "demo" else _save_checkpoint(name, folder)
    if not (folder / "a.bundle").exists():
        export(checkpoint, folder / "a.bundle", verify=False)
    if not (folder / "int8.bundle").exists():
        quantize(folder / "a.bundle", folder / "int8.bundle")
    if not (folder / "generate.onnx").exists():
        export(checkpoint, folder / "generate.onnx", graph="generate", verify=False)
    if not (folder / "model.ts").exists():
        export(checkpoint, folder / "model.ts", verify=False)
    if name != "demo":  # whose final norms after post-norm layers neither peer has
        _save_peers(checkpoint, folder)
    return checkpoint


def _save_checkpoint(name: str, folder: Path) -> Path:
    from benchmarks.marian import save_marian

    folder.mkdir(parents=True, exist_ok=True)
    if name == OPUS:
        checkpoint = folder.absolute() / "hugging-face"
        if not checkpoint.exists():
            save_marian(SIZES[name], checkpoint)
        return checkpoint
    checkpoint = folder.absolute() / "model.safetensors"
    if not checkpoint.exists():
        save_checkpoint(make_random(SIZES[name]), checkpoint)
    return checkpoint


def _save_peers(checkpoint: Path, folder: Path) -> None:
    from benchmarks.marian import convert_marian
    from benchmarks.peers import save_ctranslate2

    for target, quantization in (("ctranslate2", None), ("ctranslate2-int8", "int8")):
        if (folder / target).exists():
            continue
        if checkpoint.is_dir():
            convert_marian(checkpoint, folder / target, quantization)
        else:
            save_ctranslate2(load_checkpoint(checkpoint), folder / target, quantization)
    if OPTIMUM_PYTHON.exists() and not (folder / "optimum").exists():
        paths = [str(checkpoint), str(folder.absolute() / "optimum")]
        command = [str(OPTIMUM_PYTHON), "-m", "benchmarks.peers", *paths]
        subprocess.run(command, cwd=REPOSITORY, check=False, capture_output=True)
