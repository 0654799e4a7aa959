"""Scores and attention compared with eager PyTorch's."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support import tutorial
from tests.support.tiny_rows import rows_of
from tfexport.runtime import Translator


@pytest.fixture(scope="module")
def translator(tiny_bundle: Path) -> Translator:
    return Translator(tiny_bundle, threads=1)


@torch.no_grad()
def eager_log_probs(
    model: tutorial.TutorialModel, row: list[int], target: list[int]
) -> list[float]:
    hidden = model.encode(torch.tensor(row).unsqueeze(1))
    logits = model.decode(torch.tensor([1, *target[:-1]]).unsqueeze(1), hidden)[:, 0]
    values = logits.log_softmax(-1)
    return [float(values[i, token]) for i, token in enumerate(target)]


def test_scores_are_eagers(translator: Translator, tutorial_model: tutorial.TutorialModel) -> None:
    rows = rows_of(20)
    ways: list[dict[str, Any]] = [{}, {"beam_size": 4}, {"sampling": True, "seed": 3}]
    for options in ways:
        found = translator.generate(
            rows, max_length=15, length_penalty=0.8, return_token_scores=True, **options
        )
        for row, result in zip(rows, found, strict=True):
            made = result.hypotheses[0]
            target = [*made.tokens, *([2] if made.finished else [])]
            expected = eager_log_probs(tutorial_model, row, target)
            assert made.token_scores == pytest.approx(expected, abs=1e-5)
            assert made.score == pytest.approx(sum(expected) / len(target) ** 0.8, abs=1e-5)
    targets = [random.Random(i).choices(range(3, 19), k=i % 7) for i in range(20)]
    scored = translator.score(rows, targets, return_token_scores=True, batch_size=6)
    for row, wanted, made in zip(rows, targets, scored, strict=True):
        assert made.tokens == wanted
        assert made.token_scores == pytest.approx(
            eager_log_probs(tutorial_model, row, [*wanted, 2]), abs=1e-5
        )


def test_attention_is_eagers(
    translator: Translator, tutorial_model: tutorial.TutorialModel
) -> None:
    rows = rows_of(8)
    layer = tutorial_model.transformer.decoder.layers[-1].multihead_attn
    for head in (None, 1):
        found = translator.generate(rows, max_length=10, return_attention=True, attention_head=head)
        for row, result in zip(rows, found, strict=True):
            made = result.hypotheses[0]
            assert made.attention is not None
            assert made.attention.shape == (len(made.tokens), len(row))
            seen: list[Any] = []

            def keep(
                module: Any, inputs: Any, keywords: Any, output: Any, seen: Any = seen
            ) -> None:
                with torch.no_grad():
                    queries, keys = inputs[0], inputs[1]
                    _, weights = torch.nn.MultiheadAttention.forward(
                        module, queries, keys, keys, need_weights=True, average_attn_weights=False
                    )
                assert weights is not None
                seen.append(weights[0])

            hook = layer.register_forward_hook(keep, with_kwargs=True)
            with torch.no_grad():
                hidden = tutorial_model.encode(torch.tensor(row).unsqueeze(1))
                tutorial_model.decode(torch.tensor([1, *made.tokens]).unsqueeze(1), hidden)
            hook.remove()
            weights = seen[0].mean(0) if head is None else seen[0][head]
            assert np.allclose(made.attention, weights[: len(made.tokens)], atol=1e-5)
