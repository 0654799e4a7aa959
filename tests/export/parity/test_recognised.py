"""Comparison of a bundle with a module of transformers: the attention by which words get times."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.export.transformers_folders.families import make_model
from tfexport.bundle import SpecialIds
from tfexport.export import Input
from tfexport.export.artifacts.transformers_call import TransformersModel
from tfexport.export.incremental.forward import OwnForward
from tfexport.export.parity.eager_run import EagerRun
from tfexport.export.parity.module import EagerUserModule
from tfexport.export.parity.recognised import compare_alignment
from tfexport.model_src.checkpoint.generation_config import Generation

pytest.importorskip("transformers", reason="make optional installs it")
pytestmark = pytest.mark.peers

IDS = SpecialIds(1, 0, 2)
HEADS = [[1, 0], [0, 1], [1, 1]]
INPUTS = (Input("input_features", "float32", ("batch", 6, 24)),)


def eager(model: Any, call: Any) -> EagerUserModule:
    probe: Any = SimpleNamespace(
        module=SimpleNamespace(own=OwnForward(model, INPUTS, call=call)), inputs=INPUTS
    )
    return EagerUserModule(probe, IDS, 8)


def by_formula(model: Any, features: Tensor, ids: Tensor) -> Any:
    """The weights of ``HEADS``, (K, T, S), of queries and keys as the layers get them."""
    given: list[tuple[Any, Tensor, Tensor]] = []

    def keep(attention: Any, args: Any, kwargs: Any) -> None:
        states = args[0] if args else kwargs["hidden_states"]
        given.append((attention, states, kwargs["key_value_states"]))

    hooks = [
        layer.encoder_attn.register_forward_pre_hook(keep, with_kwargs=True)
        for layer in model.model.decoder.layers
    ]
    model(features[None], decoder_input_ids=ids[None])
    for each in hooks:
        each.remove()
    found = []
    for layer, head in HEADS:
        attention, states, memory = given[layer]
        own = slice(head * attention.head_dim, (head + 1) * attention.head_dim)
        queries = attention.q_proj(states)[0, :, own]
        keys = attention.k_proj(memory)[0, :, own]
        found.append((queries @ keys.T * attention.head_dim**-0.5).softmax(-1))
    return torch.stack(found).numpy()


@torch.no_grad()
def test_alignment_is_compared_with_the_attention_of_the_users_module() -> None:
    model = make_model("whisper").eval()
    model.set_attn_implementation("sdpa")  # which gives no weights
    draw = np.random.default_rng(1)
    rows = [{"input_features": draw.standard_normal((6, 24)).astype(np.float32)} for _ in range(2)]
    tokens = draw.integers(3, 30, (2, 5))
    call = TransformersModel("a", None, model, INPUTS, IDS, 8, Generation())
    judge, before = eager(model, call), model.config._attn_implementation
    run = EagerRun(judge, rows, (2, 24), tokens=tokens, logits=np.zeros((2, 5, 1), np.float32))

    def alignment(row: Any, ids: Any, heads: Any) -> Any:
        assert heads == HEADS
        return by_formula(model, torch.from_numpy(row["input_features"]), torch.tensor(ids))

    of_bundle: Any = SimpleNamespace(
        model=SimpleNamespace(alignment=alignment),
        manifest=SimpleNamespace(alignment_heads=HEADS),
    )
    (right,) = compare_alignment(run, of_bundle)
    assert right.stage == "alignment"
    assert right.compared == 2 * 3 * 5 * 12
    assert right.difference < 1e-6
    assert model.config._attn_implementation == before == "sdpa"
    of_bundle.model.alignment = lambda *given: alignment(*given)[[0, 2, 1]]
    (wrong,) = compare_alignment(run, of_bundle)
    assert not wrong.passed
