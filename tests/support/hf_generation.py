"""Settings of generation, drawn; and what transformers' ``generate`` gives with them."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Found:
    """What transformers found for one row.

    Attributes:
        tokens: without the start token, cut before the first end token.
        score: of a beam's best hypothesis; None of greedy search.
    """

    tokens: list[int]
    score: float | None


def draw_settings(seed: int, model: Any) -> dict[str, Any]:
    """Values of a generation_config.json: any of them that change tokens, combined."""
    draw, config = random.Random(seed), model.config
    size, eos = vocab_size(model), config.eos_token_id
    usual = [i for i in range(4, size - 4) if i not in (eos, config.pad_token_id)]
    settings: dict[str, Any] = draw.choice(
        [{"max_length": draw.choice([2, 3, 6, 12, 25])}] * 5
        + [{"max_new_tokens": draw.choice([1, 5, 9])}, {}]
    )
    forced = draw.choice(usual)
    unforced = [i for i in range(size) if i not in (eos, forced)]
    drawn = {
        "min_length": (0.3, draw.choice([2, 4, 9])),
        "min_new_tokens": (0.1, draw.choice([1, 4])),
        "forced_eos_token_id": (0.5, eos),
        "forced_bos_token_id": (0.3, forced),
        "no_repeat_ngram_size": (0.3, draw.randint(1, 3)),
        "encoder_no_repeat_ngram_size": (0.2, draw.randint(1, 3)),
        "repetition_penalty": (0.3, draw.choice([0.7, 1.3, 2.5])),
        "bad_words_ids": (0.4, _bad_words(draw, size, config.pad_token_id, eos)),
        "suppress_tokens": (0.2, draw.sample(unforced, 8)),
        "begin_suppress_tokens": (0.2, draw.sample(range(size), 12)),
        "eos_token_id": (0.2, [eos, *draw.sample([i for i in usual if i != forced], 3)]),
    }
    settings |= {key: value for key, (share, value) in drawn.items() if draw.random() < share}
    if draw.random() < 0.6:
        settings |= {
            "num_beams": draw.choice([2, 3, 4, 6]),
            "early_stopping": draw.choice([True, False, "never"]),
            "length_penalty": draw.choice([0.0, 1.0, 0.6, 2.0, -1.0]),
        }
        if draw.random() < 0.4:
            settings["renormalize_logits"] = True
    if config.model_type == "fsmt":  # which writes no padding here
        settings["suppress_tokens"] = [*settings.get("suppress_tokens", []), config.pad_token_id]
    return settings


def _bad_words(draw: random.Random, size: int, pad: int, eos: int) -> list[list[int]]:
    words = [[pad], *([eos] for _ in range(draw.random() < 0.3))]
    for _ in range(draw.choice([0, 3, 20])):
        words.append([draw.randrange(size) for _ in range(draw.choice([1, 1, 2]))])
    return words


def vocab_size(model: Any) -> int:
    """Ids of the target vocabulary."""
    return int(model.get_output_embeddings().weight.shape[0])


def draw_rows(seed: int, model: Any, count: int) -> list[list[int]]:
    """Source ids, the end token behind each."""
    draw, size = random.Random(seed), vocab_size(model)
    return [
        [*(draw.randrange(4, size - 4) for _ in range(draw.randint(1, 9))),
         model.config.eos_token_id]
        for _ in range(count)
    ]  # fmt: skip


def own_ids(model: Any) -> dict[str, Any]:
    """The ids that a generation_config.json of the model has whatever the settings."""
    given = model.generation_config.to_dict()
    names = ("decoder_start_token_id", "eos_token_id", "pad_token_id")
    return {name: given[name] for name in names}


def generate(
    model: Any,
    row: Sequence[int],
    settings: dict[str, Any] | None,
    prefix: Sequence[int] = (),
) -> Found:
    """What transformers finds for one row: the best hypothesis; see ``generate_all``."""
    return generate_all(model, row, settings, prefix, 1)[0]


def generate_all(
    model: Any,
    row: Sequence[int],
    settings: dict[str, Any] | None,
    prefix: Sequence[int] = (),
    count: int = 1,
) -> list[Found]:
    """The hypotheses that transformers finds for one row, the best first.

    Args:
        model: of ``hf_models``, or read from a folder.
        row: source ids.
        settings: all of its generation_config.json; None for the model's own.
        prefix: decoder ids behind the start token.
        count: how many hypotheses; at most as many as beams.
    """
    own = model.generation_config
    config = own
    if settings is not None:
        # All of it, and nothing of the model's own for what the settings leave open.
        model.generation_config = config = type(own)(**settings)
    given: dict[str, Any] = {}
    if count > 1:
        given["num_return_sequences"] = count
    if prefix:
        given["decoder_input_ids"] = torch.tensor([[config.decoder_start_token_id, *prefix]])
    try:
        with torch.no_grad():
            out = model.generate(
                torch.tensor([row]), attention_mask=torch.ones(1, len(row), dtype=torch.long),
                return_dict_in_generate=True, output_scores=True, **given,
            )  # fmt: skip
    finally:
        model.generation_config = own
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    scores = getattr(out, "sequences_scores", None)
    found = []
    for i, tokens in enumerate(out.sequences[:, 1:].tolist()):
        first = next((at for at, token in enumerate(tokens) if token in ends), len(tokens))
        found.append(Found(tokens[:first], None if scores is None else float(scores[i])))
    return found
