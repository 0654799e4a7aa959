"""Layers of transformers that branch on values, or on the length, in forms that are exported.

A form is found by the class's name, so that the library is never imported. Whether it is equal is
seen when what was exported is compared with the class's own forward.

Axes: B batch, S source length, N blocks, W block, H heads, D head size, E model width, M experts.
"""

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tfexport.export.graphs.torch_layers.replaced import refusal


def forms_of(module: nn.Module) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """Classes of transformers in a module, the function that is replaced, and its form."""
    for kind in {type(part) for part in module.modules()}:
        found = _FORMS.get(kind.__name__)
        if found is not None and kind.__module__.startswith("transformers."):
            yield kind, *found


def switch_router(own: Any, self: Any, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Top-1 routing (B, S, M) with the capacity of each expert, without a cast of the weights."""
    weight, bias = self.classifier.weight, self.classifier.bias
    logits = F.linear(hidden, weight, bias)
    probabilities = logits.softmax(-1)
    chosen = F.one_hot(probabilities.argmax(-1), self.num_experts)
    chosen = chosen * (chosen.cumsum(-2) <= self.expert_capacity)
    return chosen, probabilities.amax(-1, keepdim=True), logits


def switch_experts(own: Any, self: Any, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """All experts of every token (N, E), those that are not chosen weighted with 0."""
    total = torch.zeros_like(hidden)
    for number in range(self.num_experts):
        share = chosen[:, 0, number : number + 1].to(hidden.dtype) * weights
        total = total + self[f"expert_{number}"](hidden) * share
    return total


def nllb_router(own: Any, self: Any, hidden: Tensor, padding_mask: Any = None) -> Any:
    """Top-2 routing where the capacity of experts never acts.

    Raises:
        ExportError: it acts, or the second expert is drawn.
    """
    if (
        self.second_expert_policy != "all"
        or self.batch_prioritized_routing
        or self.moe_eval_capacity_token_fraction < 1
    ):
        raise refusal(
            type(self).__name__,
            "the capacity of its experts, or chance, decides which tokens they see",
            "set moe_eval_capacity_token_fraction to 1 and second_expert_policy to 'all'",
        )
    logits = F.linear(hidden, self.classifier.weight, self.classifier.bias)
    probabilities = logits.softmax(-1)
    first = F.one_hot(probabilities.argmax(-1), self.num_experts)
    others = logits.masked_fill(first.bool(), -math.inf)
    second = F.one_hot(others.argmax(-1), self.num_experts)
    # Of each token both experts have room: whether they are normalised before matters no more.
    one, two = self.normalize_router_probabilities(probabilities, first, second)
    return first, one[:, None] * first + two[:, None] * second, logits


def nllb_experts(own: Any, self: Any, hidden: Tensor, mask: Tensor, weights: Tensor) -> Tensor:
    """The experts of every token (N, E), as ``transformers`` picks them."""
    picked = F.one_hot(mask, num_classes=self.num_experts).to(hidden.dtype)  # (N, M, M)
    shares = (picked * weights.unsqueeze(-1)).sum(1)
    total = torch.zeros_like(hidden)
    for number in range(2):  # the mask is 0 or 1
        share = shares[:, number : number + 1] * (1 - self.moe_token_dropout)
        total = total + self[f"expert_{number}"](hidden) * share
    return total


def led_encoder(
    own: Any, self: Any, input_ids: Tensor, attention_mask: Tensor, **others: Any
) -> Any:
    """The encoder without global attention, and without padding to its window.

    Raises:
        ExportError: there is a mask of global attention.
    """
    if others.get("global_attention_mask") is not None:
        raise refusal(type(self).__name__, "global attention has no equal form", "omit its mask")
    x = self.embed_tokens(input_ids) + self.embed_positions(input_ids.shape)
    x = self.layernorm_embedding(x)
    for layer in self.layers:
        x = layer(x, attention_mask=attention_mask)[0]
    made = sys.modules[type(self).__module__]
    return made.LEDEncoderBaseModelOutput(last_hidden_state=x)


def led_attention(
    own: Any, self: Any, hidden_states: Tensor, attention_mask: Tensor, **others: Any
) -> tuple[Tensor]:
    """Attention of (B, S, E) to the keys of a window on both sides, by blocks of its half."""
    reach, length = self.one_sided_attn_window_size, hidden_states.size(1)
    query = self.query(hidden_states) / math.sqrt(self.head_dim)
    states = (query, self.key(hidden_states), self.value(hidden_states))
    # (B, S, E) -> (B, N, H, W, D)
    query, key, value = (
        _blocks(each, reach).unflatten(-1, (self.num_heads, self.head_dim)).transpose(2, 3)
        for each in states
    )
    kept = _neighbours(_blocks(attention_mask, reach).bool(), 2)  # (B, N, 3 W)
    row, column = torch.arange(reach).unsqueeze(1), torch.arange(3 * reach)
    near = (column >= row) & (column <= row + 2 * reach)
    seen = kept[:, :, None, None, :] & near
    scores = query @ _neighbours(key, 3).transpose(-2, -1)  # (B, N, H, W, 3 W)
    weights = scores.masked_fill(~seen, torch.finfo(scores.dtype).min).softmax(-1)
    made: Tensor = (weights @ _neighbours(value, 3)).transpose(2, 3).flatten(3).flatten(1, 2)
    return (made[:, :length],)


def _blocks(x: Tensor, size: int) -> Tensor:
    """(B, S, ...) to (B, N, W, ...), padded with zeros at the end."""
    count = (x.size(1) + size - 1) // size
    pads = [0, 0] * (x.dim() - 2) + [0, count * size - x.size(1)]
    found: Tensor = F.pad(x, pads).unflatten(1, (count, size))
    return found


def _neighbours(x: Tensor, axis: int) -> Tensor:
    """Each block (B, N, ...) with the blocks before and after it, joined along an axis."""
    empty = torch.zeros_like(x[:, :1])
    before, after = torch.cat([empty, x[:, :-1]], 1), torch.cat([x[:, 1:], empty], 1)
    return torch.cat([before, x, after], axis)


_FORMS: Mapping[str, tuple[str, Callable[..., Any]]] = {
    "SwitchTransformersTop1Router": ("forward", switch_router),
    "SwitchTransformersExperts": ("forward", switch_experts),
    "NllbMoeTop2Router": ("forward", nllb_router),
    "NllbMoeExperts": ("forward", nllb_experts),
    "LEDEncoder": ("forward", led_encoder),
    "LEDEncoderSelfAttention": ("forward", led_attention),
}
