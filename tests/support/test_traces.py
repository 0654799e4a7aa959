"""Keys of traces: equal for equal modules, else different."""

import copy
from typing import Any

import pytest
import torch

from tests.conftest import SETTINGS
from tests.support.traces import trace_key
from tfexport.export.graphs.fused_attention import FusedAttention
from tfexport.export.graphs.transformer_graphs import EncoderGraph
from tfexport.model_src import Transformer, TransformerConfig, build_transformer
from tfexport.model_src.attention import Attention


def make(attention: type[Attention] = Attention, **options: Any) -> Transformer:
    torch.manual_seed(0)
    config = TransformerConfig(
        d_model=8, num_heads=2, num_encoder_layers=1, num_decoder_layers=1, d_ff=8,
        source_vocab_size=9, target_vocab_size=9, **{**SETTINGS, **options},
    )  # fmt: skip
    return build_transformer(config, attention_class=attention)


def test_equal_modules_have_one_key() -> None:
    assert trace_key(EncoderGraph(make()), 20) == trace_key(EncoderGraph(make()), 20)


def test_everything_that_a_trace_depends_on_changes_the_key() -> None:
    changed = make()
    with torch.no_grad():
        changed.get_parameter("output_proj.bias")[0] += 1
    # The same numbers, as one tensor and as two.
    tied = make(tie_embeddings=True)
    apart = copy.deepcopy(tied)
    same = apart.get_parameter("target_embedding.tokens.weight").detach().clone()
    apart.get_submodule("target_embedding.tokens").weight = torch.nn.Parameter(same)
    models = [make(), changed, make(FusedAttention), make(mask_fill=-1e9), tied, apart]
    keys = [trace_key(EncoderGraph(model), 20) for model in models]
    keys += [trace_key(EncoderGraph(make()), 22), trace_key(make(), 20)]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("run", ["first", "next"])
def test_torch_has_one_thread_whatever_a_test_before_set(run: str) -> None:
    assert torch.get_num_threads() == 1, run
    torch.set_num_threads(2)  # as CTranslate2 does for the process
