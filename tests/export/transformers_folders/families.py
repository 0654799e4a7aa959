"""Tiny models of transformers that no layout reads, with weights far from their initial values."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from tests.support.hf_models import draw_weights

Row = dict[str, np.ndarray[Any, Any]]
VOCABULARY = 48
_BART: Mapping[str, Any] = {
    "vocab_size": VOCABULARY, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 2, "decoder_attention_heads": 4, "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 20, "max_position_embeddings": 64, "pad_token_id": 1, "bos_token_id": 0,
    "eos_token_id": 2, "decoder_start_token_id": 2,
}  # fmt: skip
_T5: Mapping[str, Any] = {
    "vocab_size": VOCABULARY, "d_model": 16, "d_kv": 6, "d_ff": 24, "num_layers": 2,
    "num_decoder_layers": 2, "num_heads": 3, "decoder_start_token_id": 0,
}  # fmt: skip
_BERT: Mapping[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 24, "max_position_embeddings": 40,
}  # fmt: skip


def _made(name: str, config: Any) -> Any:
    import transformers

    config._attn_implementation = "eager"
    return getattr(transformers, name)(config)


def _whisper(**values: Any) -> Any:
    from transformers import WhisperConfig

    sizes = {
        **_BART, "num_mel_bins": 6, "max_source_positions": 12, "max_target_positions": 30,
        "decoder_start_token_id": 3, "suppress_tokens": None, "begin_suppress_tokens": None,
    }  # fmt: skip
    del sizes["max_position_embeddings"]
    return _made("WhisperForConditionalGeneration", WhisperConfig(**{**sizes, **values}))


def _moonshine(**values: Any) -> Any:
    from transformers import MoonshineConfig

    config = MoonshineConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, encoder_num_hidden_layers=2,
        decoder_num_hidden_layers=2, encoder_num_attention_heads=2, decoder_num_attention_heads=2,
        decoder_num_key_value_heads=1, max_position_embeddings=64, **values,
    )  # fmt: skip
    return _made("MoonshineForConditionalGeneration", config)


def _speech_to_text(**values: Any) -> Any:
    from transformers import Speech2TextConfig

    sizes = {
        **_BART, "conv_channels": 12, "input_feat_per_channel": 5, "max_source_positions": 100,
        "max_target_positions": 30,
    }  # fmt: skip
    del sizes["max_position_embeddings"]
    return _made("Speech2TextForConditionalGeneration", Speech2TextConfig(**{**sizes, **values}))


def _decoder(kind: str) -> Any:
    """The config of a decoder."""
    from transformers import BertConfig, GPT2Config, MBartConfig, TrOCRConfig

    more: dict[str, Any] = {"is_decoder": True, "add_cross_attention": True}
    if kind == "trocr":
        return TrOCRConfig(
            vocab_size=VOCABULARY, d_model=16, decoder_layers=2, decoder_attention_heads=2,
            decoder_ffn_dim=24, max_position_embeddings=30, cross_attention_hidden_size=12,
            scale_embedding=True, **more,
        )  # fmt: skip
    if kind == "mbart":
        return MBartConfig(**{**_BART, **more, "max_position_embeddings": 30})
    if kind == "gpt2":
        more |= {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 30}
        return GPT2Config(vocab_size=VOCABULARY, bos_token_id=3, eos_token_id=4, **more)
    return BertConfig(**{**_BERT, **more})


def _joined(name: str, encoder: Any, decoder: Any, **values: Any) -> Any:
    import transformers

    config = getattr(transformers, f"{name}Config").from_encoder_decoder_configs(encoder, decoder)
    ids = {"pad_token_id": 0, "decoder_start_token_id": 3, "eos_token_id": 4}
    for key, value in {**ids, **values}.items():
        setattr(config, key, value)
        setattr(config.decoder, key, value)
    return _made(f"{name}Model", config)


def _vit(decoder: str, width: int = 12, **values: Any) -> Any:
    from transformers import ViTConfig

    encoder = ViTConfig(
        hidden_size=width, num_hidden_layers=2, num_attention_heads=2, intermediate_size=20,
        image_size=12, patch_size=4, num_channels=3,
    )  # fmt: skip
    return _joined("VisionEncoderDecoder", encoder, _decoder(decoder), **values)


def _trocr(**values: Any) -> Any:
    return _vit("trocr", **values)


def _gpt2(**values: Any) -> Any:
    return _vit("gpt2", 16, **values)


def _donut(**values: Any) -> Any:
    from transformers import DonutSwinConfig

    encoder = DonutSwinConfig(
        image_size=[16, 24], patch_size=2, embed_dim=8, depths=[1, 1], num_heads=[2, 2],
        window_size=2, num_channels=3,
    )  # fmt: skip
    return _joined("VisionEncoderDecoder", encoder, _decoder("mbart"), **values)


def _pix2struct(patch: int = 10, **values: Any) -> Any:
    from transformers import Pix2StructConfig

    text = {
        "vocab_size": VOCABULARY, "hidden_size": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2,
        "num_heads": 2,
    }  # fmt: skip
    vision = {
        "hidden_size": 16, "patch_embed_hidden_size": patch, "d_ff": 24, "d_kv": 4,
        "num_hidden_layers": 2, "num_attention_heads": 4, "seq_len": 32,
    }  # fmt: skip
    config = Pix2StructConfig(text_config=text, vision_config=vision, **values)
    return _made("Pix2StructForConditionalGeneration", config)


def _bert2bert(**values: Any) -> Any:
    from transformers import BertConfig

    return _joined("EncoderDecoder", BertConfig(**_BERT), _decoder("bert"), **values)


def _t5gemma(**values: Any) -> Any:
    from transformers import T5GemmaConfig

    sizes = {
        "vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 24,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6,
        "max_position_embeddings": 64, "sliding_window": 5, "query_pre_attn_scalar": 5,
    }  # fmt: skip
    config = T5GemmaConfig(encoder=sizes, decoder=sizes, vocab_size=VOCABULARY, **values)
    return _made("T5GemmaForConditionalGeneration", config)


def _led(**values: Any) -> Any:
    from transformers import LEDConfig

    sizes = {
        **_BART, "max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 30,
        "attention_window": 8,
    }  # fmt: skip
    del sizes["max_position_embeddings"]
    return _made("LEDForConditionalGeneration", LEDConfig(**{**sizes, **values}))


def _mvp(**values: Any) -> Any:
    from transformers import MvpConfig

    more = {"use_prompt": True, "prompt_length": 5, "prompt_mid_dim": 12}
    return _made("MvpForConditionalGeneration", MvpConfig(**{**_BART, **more, **values}))


def _longt5(**values: Any) -> Any:
    from transformers import LongT5Config

    sizes = {**_T5, "local_radius": 4, "global_block_size": 4, **values}
    return _made("LongT5ForConditionalGeneration", LongT5Config(**sizes))


def _longt5_global(**values: Any) -> Any:
    return _longt5(encoder_attention_type="transient-global", **values)


def _pegasus_x(**values: Any) -> Any:
    from transformers import PegasusXConfig

    ids = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    sizes = {**_BART, **ids, "block_size": 4, "num_global_tokens": 3}
    return _made("PegasusXForConditionalGeneration", PegasusXConfig(**{**sizes, **values}))


def _prophetnet(**values: Any) -> Any:
    from transformers import ProphetNetConfig

    config = ProphetNetConfig(
        vocab_size=VOCABULARY, hidden_size=16, encoder_ffn_dim=24, num_encoder_layers=2,
        num_encoder_attention_heads=2, decoder_ffn_dim=20, num_decoder_layers=2,
        num_decoder_attention_heads=2, max_position_embeddings=64, ngram=2, **values,
    )  # fmt: skip
    return _made("ProphetNetForConditionalGeneration", config)


def _nllb_moe(**values: Any) -> Any:
    from transformers import NllbMoeConfig

    more = {"num_experts": 4, "encoder_sparse_step": 2, "decoder_sparse_step": 2}
    config = NllbMoeConfig(**{**_BART, **more, **values})
    return _made("NllbMoeForConditionalGeneration", config)


def _switch_transformers(**values: Any) -> Any:
    from transformers import SwitchTransformersConfig

    more = {"num_experts": 4, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1}
    config = SwitchTransformersConfig(**{**_T5, **more, **values})
    return _made("SwitchTransformersForConditionalGeneration", config)


def _bigbird_pegasus(**values: Any) -> Any:
    from transformers import BigBirdPegasusConfig

    more = {"block_size": 4, "num_random_blocks": 1, "eos_token_id": 1, "pad_token_id": 0}
    config = BigBirdPegasusConfig(**{**_BART, **more, **values})
    return _made("BigBirdPegasusForConditionalGeneration", config)


def _speech_encoder_decoder(**values: Any) -> Any:
    from transformers import Wav2Vec2Config

    encoder = Wav2Vec2Config(
        vocab_size=20, hidden_size=12, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=20, conv_dim=(8, 8), conv_stride=(5, 2), conv_kernel=(10, 3),
        num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2,
        add_adapter=False,
    )  # fmt: skip
    return _joined("SpeechEncoderDecoder", encoder, _decoder("bert"), **values)


FAMILIES: Mapping[str, Callable[..., Any]] = {
    "whisper": _whisper,
    "moonshine": _moonshine,
    "speech_to_text": _speech_to_text,
    "trocr": _trocr,
    "gpt2": _gpt2,
    "donut": _donut,
    "pix2struct": _pix2struct,
    "bert2bert": _bert2bert,
    "t5gemma": _t5gemma,
    "led": _led,
    "mvp": _mvp,
    "longt5": _longt5,
    "longt5_global": _longt5_global,
    "pegasus_x": _pegasus_x,
    "prophetnet": _prophetnet,
    "nllb-moe": _nllb_moe,
    "switch_transformers": _switch_transformers,
    "bigbird_pegasus": _bigbird_pegasus,
    "speech-encoder-decoder": _speech_encoder_decoder,
}


def make_model(family: str, seed: int = 0, **config: Any) -> Any:
    """A model in eval mode, with drawn weights."""
    torch.manual_seed(seed)
    model = FAMILIES[family](**config)
    draw_weights(model, seed)
    model.tie_weights()
    return model.eval()


def draw_inputs(family: str, count: int, seed: int = 0) -> list[Row]:
    """Rows of a family's input, of several sizes where these vary."""
    draw = np.random.default_rng(seed)

    def floats(*shape: int) -> np.ndarray[Any, Any]:
        return draw.standard_normal(shape).astype(np.float32)

    rows: list[Row] = []
    for number in range(count):
        length = 3 + 4 * number
        if family == "whisper":
            rows.append({"input_features": floats(6, 24)})
        elif family == "moonshine":
            rows.append({"input_values": floats(1500 + 700 * number)})
        elif family == "speech-encoder-decoder":
            rows.append({"input_values": floats(90 + 40 * number)})
        elif family == "speech_to_text":
            rows.append({"input_features": floats(length + 6, 5)})
        elif family in ("trocr", "gpt2"):
            rows.append({"pixel_values": floats(3, 12, 12)})
        elif family == "donut":
            rows.append({"pixel_values": floats(3, 16, 24)})
        elif family == "pix2struct":
            patches = floats(8, 12)
            patches[:, 0], patches[:, 1] = 1 + np.arange(8) // 3, 1 + np.arange(8) % 3
            mask = np.ones(8, np.int64)
            if number:  # as the image is smaller than the most patches
                patches[-number:], mask[-number:] = 0, 0
            rows.append({"flattened_patches": patches, "attention_mask": mask})
        else:
            ids = draw.integers(5, VOCABULARY, length)
            rows.append({"input_ids": ids, "attention_mask": np.ones_like(ids)})
    return rows
