import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfexport.errors import ConfigError
from tfexport.model_src import TransformerConfig
from tfexport.model_src.config import config_keys

SIZES: dict[str, Any] = {
    "d_model": 16,
    "num_heads": 4,
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
    "d_ff": 32,
}


def test_head_dim_follows_from_heads_unless_given() -> None:
    assert TransformerConfig(**SIZES).head_dim == 4
    assert TransformerConfig(**SIZES, head_dim=7).head_dim == 7


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "mask_fill": st.sampled_from([-math.inf, -1e9, -10000]),
            "norm": st.sampled_from(["layer", "annotated", "rms"]),
            "norm_eps": st.sampled_from([0, 1e-5, 1e-6]),
            "positions": st.sampled_from(["sinusoidal", "learned", "none"]),
            "dropout": st.floats(0, 0.99),
            "tie_output": st.booleans(),
            "eos_id": st.none() | st.integers(0, 10),
            "source_vocab_size": st.just(11),
            "target_vocab_size": st.just(11),
        },
    )
)
def test_json_round_trip_is_exact(options: dict[str, Any]) -> None:
    if ("source_vocab_size" in options) != ("target_vocab_size" in options):
        return
    config = TransformerConfig(**SIZES, **options)
    text = json.dumps(config.to_dict(), allow_nan=False)
    assert TransformerConfig.from_dict(json.loads(text)) == config


def test_all_problems_come_in_one_message() -> None:
    with pytest.raises(ConfigError) as caught:
        TransformerConfig(**{**SIZES, "num_heads": 5, "dropout": 1.5}, mask_fill=1.0)
    message = str(caught.value)
    assert "5 heads do not divide d_model 16" in message
    assert "dropout: 1.5" in message
    assert "mask_fill: 1.0" in message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"norm": "batch"}, "norm: 'batch' is not one of 'layer', 'annotated', 'rms'"),
        ({"d_model": "16"}, "d_model: '16' is not an integer"),
        ({"d_ff": 0}, "d_ff: 0 is not positive"),
        ({"num_heads": True}, "num_heads: True is not an integer"),
        ({"scale_embeddings": 1}, "scale_embeddings: 1 is not true or false"),
        ({"norm_eps": "small"}, "norm_eps: 'small' is not a number"),
        ({"norm_eps": math.nan}, "norm_eps: nan"),
        ({"mask_fill": math.nan}, "mask_fill: nan"),
        ({"source_vocab_size": 9}, "give both, or neither"),
        (
            {"source_vocab_size": 9, "target_vocab_size": 8, "tie_embeddings": True},
            "one table cannot serve 9 source and 8 target ids",
        ),
        (
            {"source_vocab_size": 9, "target_vocab_size": 8, "eos_id": 8},
            "eos_id: 8 is not an id of the target vocabulary (0 to 7)",
        ),
        (
            {"source_vocab_size": 5, "target_vocab_size": 8, "pad_id": 6},
            "pad_id: 6 is not an id of the source vocabulary (0 to 4)",
        ),
        (
            {"source_vocab_size": 5, "target_vocab_size": 8, "add_source_bos": True},
            "add_source_bos needs bos_id",
        ),
    ],
)
def test_bad_value_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TransformerConfig(**{**SIZES, **options})
    assert message in str(caught.value)


def test_unknown_and_missing_keys_are_all_named() -> None:
    with pytest.raises(ConfigError) as caught:
        TransformerConfig.from_dict({"d_modle": 16, "num_heads": 4, "colour": "red"})
    message = str(caught.value)
    assert "unknown key 'd_modle'; did you mean 'd_model'?" in message
    assert "unknown key 'colour'" in message
    assert "missing: d_model, num_encoder_layers" in message


def test_every_key_is_documented() -> None:
    text = TransformerConfig.__doc__ or ""
    assert [key for key in config_keys() if f"        {key}: " not in text] == []
