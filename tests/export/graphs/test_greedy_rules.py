"""A graph that keeps a model's own rules decodes as an eager loop that keeps them."""

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch

from tests.support.combinations import few_of
from tfexport.export.artifacts.onnx_file import join_weights
from tfexport.export.graphs.greedy import export_generate
from tfexport.export.graphs.step_model import GreedyRules
from tfexport.export.graphs.transformer_graphs import export_encoder
from tfexport.export.graphs.transformer_steps import TransformerSteps
from tfexport.model_src.build import build_transformer
from tfexport.model_src.config import TransformerConfig
from tfexport.model_src.transformer import Transformer

PAD, BOS, EOS, STEPS = 0, 1, 2, 12
RULES = {
    "suppress": GreedyRules(suppress_tokens=(PAD,)),
    "first": GreedyRules(first_token=9),
    "last": GreedyRules(last_token=EOS),
    "all": GreedyRules((PAD, 6), first_token=8, last_token=EOS),
}


def make_model(output_bias: bool) -> Transformer:
    torch.manual_seed(3)
    config = TransformerConfig(
        16, 2, 1, 2, 24, 20, 23, output_bias=output_bias, max_positions=STEPS + 4,
        pad_id=PAD, bos_id=BOS, eos_id=EOS, dropout=0.0,
    )  # fmt: skip
    model = build_transformer(config).eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.copy_(torch.randn_like(parameter) * (0.9 if parameter.dim() > 1 else 0.4))
    return model


def eager(
    model: Transformer, ids: torch.Tensor, mask: torch.Tensor, rules: GreedyRules, steps: int
) -> tuple[list[list[int]], list[float]]:
    """The rules as they are defined, one row after the other."""
    rows, scores = [], []
    for row, kept in zip(ids, mask, strict=True):
        tokens, log_probs = [BOS], list[float]()
        for step in range(steps):
            prefix = torch.tensor([tokens])
            logits = model(row[None], kept[None], prefix, torch.ones_like(prefix))[0, -1]
            logits[list(rules.suppress_tokens)] = -torch.inf
            token, log_prob = int(logits.argmax()), float(logits.log_softmax(-1).max())
            if step == 0 and rules.first_token is not None:
                token, log_prob = rules.first_token, 0.0
            if step == steps - 1 and rules.last_token is not None:
                token, log_prob = rules.last_token, 0.0
            tokens.append(token)
            log_probs.append(log_prob)
            if token == EOS:
                break
        rows.append(tokens[1:])
        scores.append(sum(log_probs) / len(log_probs))
    return rows, scores


@pytest.mark.parametrize("output_bias", few_of([True, False], True))
@pytest.mark.parametrize("name", few_of(RULES, "all"))
def test_rules_of_a_graph(name: str, output_bias: bool, tmp_path: Path) -> None:
    model, rules = make_model(output_bias), RULES[name]
    ids = torch.randint(3, 20, (9, 6), generator=torch.Generator().manual_seed(1))
    mask = (torch.arange(6) < torch.tensor([6, 1, 3, 6, 2, 5, 4, 6, 1])[:, None]).long()
    if rules.suppress_tokens:  # what the model says most is banned too
        free = eager(model, ids, mask, GreedyRules(), STEPS)[0]
        often = Counter(token for row in free for token in row if token != EOS).most_common(2)
        banned = (*rules.suppress_tokens, *(token for token, _ in often))
        rules = dataclasses.replace(rules, suppress_tokens=banned)
    graph = export_generate(TransformerSteps(model, rules), 20, export_encoder(model, 20))
    join_weights(graph, "generate")
    ir.save(graph, tmp_path / "generate.onnx")
    session = ort.InferenceSession(tmp_path / "generate.onnx")
    differs = False
    for steps in (1, 2, 3, STEPS):
        feeds: dict[str, Any] = {
            "input_ids": ids.numpy(),
            "attention_mask": mask.numpy(),
            "max_length": np.array(steps),
        }
        sequences, scores = session.run(["sequences", "scores"], feeds)
        expected, log_probs = eager(model, ids, mask, rules, steps)
        longest = max(map(len, expected))
        assert sequences.tolist() == [row + [PAD] * (longest - len(row)) for row in expected]
        assert scores == pytest.approx(log_probs, abs=1e-5)
        differs |= expected != eager(model, ids, mask, GreedyRules(), steps)[0]
    assert differs, "rules have to change tokens for the comparison to say something"
