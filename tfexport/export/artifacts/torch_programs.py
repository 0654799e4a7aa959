"""The modules in torch files: a Transformer that checks its inputs, and greedy decoding.

Axes: B batch, S source, T target, P past, H heads, D head size, E model width, V vocabulary.
"""

from typing import cast

import torch
from torch import Tensor, nn

from tfexport.export import torch_names
from tfexport.export.graphs.greedy import first_state, take_best
from tfexport.export.graphs.step_model import NO_RULES, GreedyRules
from tfexport.model_src.masks import bias_from_blocked, blocked_by_padding
from tfexport.model_src.transformer import Transformer

# The choice of a token in torch files, by a model's own rules; see ``greedy_rules``.
#
# Axes: B batch, V vocabulary.


class GreedyChoice(nn.Module):
    """The best token of every row, or the one that is forced.

    Attributes:
        first: the forced first token; -1 for none.
        last: the forced last one; -1 for none.
    """

    def __init__(self, rules: GreedyRules, vocab_size: int) -> None:
        super().__init__()
        self.suppresses = bool(rules.suppress_tokens)
        self.bias = nn.Buffer(rules.bias(vocab_size if self.suppresses else 0))
        self.first = -1 if rules.first_token is None else rules.first_token
        self.last = -1 if rules.last_token is None else rules.last_token

    def forward(self, logits: Tensor, step: int, steps: int) -> Tensor:
        """Logits (B, 1, V) of one of ``steps`` steps to tokens (B, 1)."""
        best = self.best(logits)
        if self.last >= 0 and step + 1 == steps:
            return torch.full_like(best, self.last)
        if self.first >= 0 and step == 0:
            return torch.full_like(best, self.first)
        return best

    @torch.jit.unused
    def at(self, logits: Tensor, position: Tensor, limit: Tensor) -> Tensor:
        """``forward``, with the step and their number as tensors (1,)."""
        best = self.best(logits)
        if self.first >= 0:
            best = torch.where(position == 0, self.first, best)
        if self.last >= 0:
            best = torch.where(position + 1 == limit, self.last, best)
        return best

    def best(self, logits: Tensor) -> Tensor:
        """The best token that is allowed, (B, 1)."""
        return (logits + self.bias if self.suppresses else logits).argmax(-1)


def check_input(name: str, ids: Tensor, mask: Tensor, vocab_size: int) -> None:
    """Refuse ids that are no vocabulary entries, and a mask that would broadcast.

    Args:
        name: of the ids, for the message.
        ids: (B, S) int64; (B, S, E) float for a model without embeddings, ``vocab_size`` -1.
        mask: (B, S), integers or bool. A float mask elsewhere is additive, 0 = keep: refused.
        vocab_size: V.
    """
    if vocab_size >= 0:
        if ids.dtype != torch.int64 or ids.dim() != 2:
            raise ValueError(f"{name}: expected int64 ids of shape (batch, length)")
        if ids.numel() > 0 and (int(ids.min()) < 0 or int(ids.max()) >= vocab_size):
            raise ValueError(f"{name}: ids must be from 0 to {vocab_size - 1}")
    elif not ids.is_floating_point() or ids.dim() != 3:
        raise ValueError(f"{name}: expected float vectors of shape (batch, length, d_model)")
    if mask.is_floating_point():
        raise ValueError(f"{name}: its mask must be int64 (1: a token, 0: padding), not floats")
    if mask.dim() != 2 or mask.size(0) != ids.size(0) or mask.size(1) != ids.size(1):
        raise ValueError(f"{name}: its mask must have shape (batch, length), as the ids")


class TransformerModule(nn.Module):
    """``forward``, ``encode`` and ``step`` of a Transformer; see there.

    Attributes:
        max_positions: the longest source and target; -1 if there is no limit.
    """

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model
        config = model.config
        self.source_size = -1 if config.source_vocab_size is None else config.source_vocab_size
        self.target_size = -1 if config.target_vocab_size is None else config.target_vocab_size
        self.max_positions = -1 if config.longest is None else config.longest
        self.mask_fill = model.mask_fill

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        decoder_input_ids: Tensor,
        decoder_attention_mask: Tensor,
    ) -> Tensor:
        """(B, S) twice, (B, T) twice, to logits (B, T, V). Masks are 1 = keep."""
        check_input("input_ids", input_ids, attention_mask, self.source_size)
        check_input(
            "decoder_input_ids", decoder_input_ids, decoder_attention_mask, self.target_size
        )
        logits: Tensor = self.model(
            input_ids, attention_mask, decoder_input_ids, decoder_attention_mask
        )
        return logits

    @torch.jit.export
    def encode(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, list[Tensor]]:
        """(B, S) twice, to states (B, S, E) and the cross-attention cache, (B, H, S, D) each."""
        check_input("input_ids", input_ids, attention_mask, self.source_size)
        return self.model.encode(input_ids, attention_mask)

    @torch.jit.export
    def step(
        self,
        input_ids: Tensor,
        past: list[Tensor],
        cross: list[Tensor],
        encoder_attention_mask: Tensor,
    ) -> tuple[Tensor, list[Tensor]]:
        """Advance by T positions after P cached ones.

        Args:
            input_ids: (B, T).
            past: the self-attention cache, (B, H, P, D) each; an empty list before the first call.
            cross: the cross-attention cache of ``encode``.
            encoder_attention_mask: (B, S), as given to ``encode``.

        Returns:
            logits: (B, T, V).
            present: (B, H, P + T, D) each.
        """
        check_input(
            "input_ids",
            input_ids,
            torch.ones(input_ids.shape[:2], dtype=torch.int64),
            self.target_size,
        )
        expected = [cross[0].size(0), cross[0].size(2)]
        if list(encoder_attention_mask.shape) != expected or input_ids.size(0) != expected[0]:
            raise ValueError("encoder_attention_mask: expected the shape (batch, source length)")
        if len(past) == 0:
            past = self.model.decoder.empty_cache(cross[0])
        return self.model.step(input_ids, past, cross, encoder_attention_mask)


class GreedyModule(TransformerModule):
    """``TransformerModule`` and ``generate``.

    Attributes:
        bos_id: the start token.
        eos_id: the end token.
        pad_id: after the end token.
    """

    def __init__(self, model: Transformer, rules: GreedyRules = NO_RULES) -> None:
        super().__init__(model)
        self.choice = GreedyChoice(rules, self.target_size)
        ids = model.config.special_ids
        self.bos_id, self.eos_id, self.pad_id = ids.decoder_start, ids.eos, ids.pad

    @torch.jit.export
    def generate(self, input_ids: Tensor, attention_mask: Tensor, max_length: int) -> Tensor:
        """Decode greedily.

        Args:
            input_ids: (B, S).
            attention_mask: (B, S), 1 = keep.
            max_length: new tokens at most; bounded by the position table.

        Returns:
            (B, T): no start token, the end token included, padding after it.
        """
        check_input("input_ids", input_ids, attention_mask, self.source_size)
        token, ended = first_state(attention_mask, self.bos_id)
        tokens = [token[:, :0]]
        if self.max_positions >= 0:
            max_length = min(max_length, self.max_positions)
        if input_ids.numel() == 0:
            max_length = 0
        else:
            _hidden, cross = self.model.encode(input_ids, attention_mask)
            bias = bias_from_blocked(blocked_by_padding(attention_mask), self.mask_fill)
            past = self.model.decoder.empty_cache(cross[0])
            no_bias = torch.zeros(1)  # the newest position may see all others
            for i in range(max_length):
                if bool(ended.all()):
                    break
                x = self.model.target_embedding(token, i)
                x, past, _weights = self.model.decoder(x, no_bias, past, cross, bias)
                best = self.choice(self.model.output_proj(x), i, max_length)
                token, ended = take_best(best, ended, self.eos_id, self.pad_id)
                tokens.append(token)
        return torch.cat(tokens, dim=1)


class GreedyProgram(nn.Module):
    """``GreedyModule.generate`` for ``torch.export``, whose only loop carries fixed shapes.

    The caches have their full length from the start; a step reads the part that is filled,
    runs the decoder on it as everywhere else, and writes the one new position.
    """

    def __init__(self, model: Transformer, rules: GreedyRules = NO_RULES) -> None:
        super().__init__()
        self.model = model
        self.choice = GreedyChoice(rules, model.config.target_vocab_size or 0)
        ids = model.config.special_ids
        self.bos_id, self.eos_id, self.pad_id = ids.decoder_start, ids.eos, ids.pad
        self._assert_type = torch_names.need(torch_names.ASSERT_TYPE, "torch_export")

    def forward(self, input_ids: Tensor, attention_mask: Tensor, max_length: int) -> Tensor:
        """See ``GreedyModule.generate``; B and S may not be 0, ``max_length`` not negative."""
        for tensor in (input_ids, attention_mask):
            self._assert_type(tensor, None, None, torch.int64)
        model, config = self.model, self.model.config
        _, cross = model.encode(input_ids, attention_mask)
        bias = bias_from_blocked(blocked_by_padding(attention_mask), model.mask_fill)
        token, ended = first_state(attention_mask, self.bos_id)
        if config.longest is not None:
            max_length = torch.sym_min(max_length, config.longest)
        room = max_length + 2  # never 0 or 1, which torch.export takes for constants
        sequences = torch.full((input_ids.size(0), room), self.pad_id)
        shape = (input_ids.size(0), model.decoder.num_heads, room, model.decoder.head_dim)
        caches = [torch.zeros(shape) for _ in cross]
        position = torch.zeros(1, dtype=torch.int64)
        limit = torch.full((1,), max_length)

        def keep_going(position: Tensor, token: Tensor, ended: Tensor, *others: Tensor) -> Tensor:
            return (position < limit)[0] & ~ended.all()

        def step(
            position: Tensor,
            token: Tensor,
            ended: Tensor,
            sequences: Tensor,
            *caches: Tensor,
        ) -> tuple[Tensor, ...]:
            filled = cast(int, position.item())  # int() would ask for its value
            torch._check(filled >= 0)
            torch._check(filled + 1 <= sequences.size(1))
            past = [cache.narrow(2, 0, filled) for cache in caches]
            x = model.target_embedding(token, filled)
            x, present, _ = model.decoder(x, torch.zeros(1), past, cross, bias)
            best = self.choice.at(model.output_proj(x), position, limit)
            token, ended = take_best(best, ended, self.eos_id, self.pad_id)
            written = [
                cache.index_copy(2, position, new.narrow(2, filled, 1))
                for cache, new in zip(caches, present, strict=True)
            ]
            sequences = sequences.index_copy(1, position, token)
            return (position + 1, token, ended, sequences, *written)

        state = (position, token, ended, sequences, *caches)
        done = torch.while_loop(keep_going, step, state)
        length = cast(int, done[0].item())
        torch._check(length >= 0)
        torch._check(length <= sequences.size(1))
        result: Tensor = done[3]
        return result[:, :length]
