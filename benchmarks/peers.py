"""The same weights in other systems: CTranslate2 and Hugging Face Transformers.

Neither loads such checkpoints itself; these write what each would have made of them.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tfexport.model_src.checkpoint.checkpoint import Checkpoint

Weights = dict[str, Tensor]
NORMS = {"self_attn": "self_attn_residual", "cross_attn": "cross_attn_residual"}


def words_of(size: int) -> list[str]:
    """Names for ids, since CTranslate2 takes tokens as text."""
    return [f"t{i}" for i in range(size)]


def save_ctranslate2(checkpoint: Checkpoint, folder: Path, quantization: str | None = None) -> None:
    """Write a CTranslate2 model.

    Args:
        checkpoint: a sinusoidal or learned-position model with layer norms, pre-norm with final
            norms or post-norm without, which is what CTranslate2 expresses.
        folder: to make.
        quantization: as CTranslate2 names it, e.g. "int8".
    """
    from ctranslate2.specs import Activation, TransformerSpec

    config, weights = checkpoint.config, checkpoint.weights
    pre_norm = config.norm_placement == "pre"
    assert pre_norm == config.encoder_final_norm == config.decoder_final_norm
    assert config.source_vocab_size is not None
    assert config.target_vocab_size is not None
    spec = TransformerSpec.from_config(
        (config.num_encoder_layers, config.num_decoder_layers),
        config.num_heads,
        pre_norm=pre_norm,
        activation=Activation.RELU,
    )
    for side, part in (("source", spec.encoder), ("target", spec.decoder)):
        prefix = "encoder" if side == "source" else "decoder"
        embedding = part.embeddings[0] if side == "source" else part.embeddings
        embedding.weight = _array(weights[f"{side}_embedding.tokens.weight"])
        part.scale_embeddings = config.scale_embeddings
        part.position_encodings.encodings = _array(weights[f"{side}_embedding.positions.table"])
        if pre_norm:
            _norm(part.layer_norm, weights, f"{prefix}.norm")
        for i, layer in enumerate(part.layer):
            name = f"{prefix}.layers.{i}"
            _attention(layer.self_attention, weights, name, "self_attn", packed=3)
            if side == "target":
                _attention(layer.attention, weights, name, "cross_attn", packed=2)
            _linear(layer.ffn.linear_0, weights, [f"{name}.feed_forward.up_proj"])
            _linear(layer.ffn.linear_1, weights, [f"{name}.feed_forward.down_proj"])
            _norm(layer.ffn.layer_norm, weights, f"{name}.feed_forward_residual.norm")
    projection = weights.get("output_proj.weight", weights["target_embedding.tokens.weight"])
    spec.decoder.projection.weight = _array(projection)
    if "output_proj.bias" in weights:
        spec.decoder.projection.bias = _array(weights["output_proj.bias"])
    spec.register_source_vocabulary(words_of(config.source_vocab_size))
    spec.register_target_vocabulary(words_of(config.target_vocab_size))
    spec.config.bos_token = spec.config.decoder_start_token = f"t{config.bos_id}"
    spec.config.eos_token = f"t{config.eos_id}"
    spec.config.unk_token = f"t{config.unk_id if config.unk_id is not None else config.pad_id}"
    spec.config.layer_norm_epsilon = config.norm_eps
    spec.validate()
    spec.optimize(quantization=quantization)
    folder.mkdir(parents=True)
    spec.save(str(folder))


def _attention(spec: Any, weights: Weights, layer: str, kind: str, packed: int) -> None:
    """CTranslate2 packs q, k, v of a self-attention, and k, v of a cross-attention."""
    names = [f"{layer}.{kind}.{part}_proj" for part in ("q", "k", "v")]
    groups = [names] if packed == 3 else [names[:1], names[1:]]
    for linear, group in zip(spec.linear, [*groups, [f"{layer}.{kind}.out_proj"]], strict=True):
        _linear(linear, weights, group)
    _norm(spec.layer_norm, weights, f"{layer}.{NORMS[kind]}.norm")


def _linear(spec: Any, weights: Weights, names: list[str]) -> None:
    spec.weight = _array(torch.cat([weights[f"{name}.weight"] for name in names]))
    if f"{names[0]}.bias" in weights:
        spec.bias = _array(torch.cat([weights[f"{name}.bias"] for name in names]))


def _norm(spec: Any, weights: Weights, name: str) -> None:
    spec.gamma = _array(weights[f"{name}.weight"])
    spec.beta = _array(weights[f"{name}.bias"])


def _array(tensor: Tensor) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.ascontiguousarray(tensor.detach().float().numpy())


def build_marian(checkpoint: Checkpoint) -> Any:
    """A MarianMTModel of Transformers: post-norm, without final norms."""
    from transformers import MarianConfig, MarianMTModel

    config, weights = checkpoint.config, checkpoint.weights
    assert config.norm_placement == "post"
    assert not config.encoder_final_norm
    assert config.source_vocab_size is not None
    assert config.bos_id is not None
    model = MarianMTModel(
        MarianConfig(
            vocab_size=config.source_vocab_size,
            decoder_vocab_size=config.target_vocab_size,
            max_position_embeddings=config.max_positions,
            encoder_layers=config.num_encoder_layers,
            decoder_layers=config.num_decoder_layers,
            encoder_attention_heads=config.num_heads,
            decoder_attention_heads=config.num_heads,
            encoder_ffn_dim=config.d_ff,
            decoder_ffn_dim=config.d_ff,
            d_model=config.d_model,
            activation_function=config.activation,
            scale_embedding=config.scale_embeddings,
            pad_token_id=config.pad_id,
            eos_token_id=config.eos_id,
            decoder_start_token_id=config.bos_id,
            forced_eos_token_id=None,
            share_encoder_decoder_embeddings=False,
            tie_word_embeddings=False,
        )
    )
    model.train(False)
    own = model.state_dict()
    new = {name: _marian_value(name, weights, own[name]) for name in own}
    model.load_state_dict(new)
    model.generation_config.bad_words_ids = None
    return model


def open_marian(checkpoint: Path) -> Any:
    """A folder of Hugging Face, or ``build_marian`` of a checkpoint of this project.

    The latter is built, not loaded: a saved Marian forgets its position table, and takes another.
    """
    from transformers import MarianMTModel

    from tfexport.model_src import load_checkpoint

    if checkpoint.is_dir():
        return MarianMTModel.from_pretrained(checkpoint)
    return build_marian(load_checkpoint(checkpoint))


def save_optimum(model: Any, folder: Path) -> None:
    """Export a model with Optimum, in memory."""
    from optimum.exporters.onnx import onnx_export_from_model

    task = "text2text-generation-with-past"
    onnx_export_from_model(model, folder, task=task, do_validation=False)


def _marian_value(name: str, weights: Weights, own: Tensor) -> Tensor:
    """The checkpoint's weight that has Marian's name."""
    if name == "final_logits_bias":
        bias = weights.get("output_proj.bias")
        return own if bias is None else bias[None]
    if name == "lm_head.weight":
        return weights.get("output_proj.weight", weights["target_embedding.tokens.weight"])
    part, key = name.removeprefix("model.").split(".", 1)
    side = "source" if part == "encoder" else "target"
    if key == "embed_tokens.weight":
        return weights[f"{side}_embedding.tokens.weight"]
    if key == "embed_positions.weight":
        return weights[f"{side}_embedding.positions.table"]
    for theirs, ours in (
        ("encoder_attn_layer_norm", "cross_attn_residual.norm"),
        ("self_attn_layer_norm", "self_attn_residual.norm"),
        ("final_layer_norm", "feed_forward_residual.norm"),
        ("encoder_attn", "cross_attn"),
        ("fc1", "feed_forward.up_proj"),
        ("fc2", "feed_forward.down_proj"),
    ):
        if theirs in key:
            key = key.replace(theirs, ours)
            break
    return weights[f"{part}.{key}"]


if __name__ == "__main__":  # in the environment that has Optimum
    import sys

    save_optimum(open_marian(Path(sys.argv[1])), Path(sys.argv[2]))
