"""Dates as people write them, normalised: "4th of March 1999" becomes "1999-03-04".

    python examples/modules/rotary.py --output dates.bundle
    echo "from 1 May 2001 to 3.6.2001" | tfexport translate dates.bundle

The model has what language models have today: rotary positions (Su et al. 2021), RMSNorm (Zhang
and Sennrich 2019), SwiGLU (Shazeer 2020) and grouped-query attention (Ainslie et al. 2023). Its
decoder keeps a cache of keys and values that grows by one position a step. ``--recompute`` exports
the same weights without the cache, which is easier to write and slower to decode.

Axes: B batch, S source length, T target length, P past length, H heads, G heads of keys and
values, D head size, E width, V vocabulary.
"""

import argparse
import functools
import random
import time
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn
from torch.nn import functional as F

from tfexport.export import Input, export
from tfexport.runtime import Translator

SPECIAL = ["<pad>", "<s>", "</s>", "<unk>"]
PAD, BOS, EOS, UNK = range(4)
VOCABULARY = [*SPECIAL, *" ,-./0123456789abcdefghijklmnopqrstuvwxyzADFJMNOS"]
MONTHS = "January February March April May June July August September October November December"
WIDTH, HEADS, KV_HEADS, HIDDEN = 96, 6, 2, 192
MAX_LENGTH = 32

State = tuple[Tensor, ...]
linear = functools.partial(nn.Linear, bias=False)


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    """Turn pairs of (B, H, T, D) by an angle that grows with the position (T)."""
    half = x.shape[-1] // 2
    angles = positions[:, None] * 10_000.0 ** (-torch.arange(half, device=x.device) / half)
    cos, sin = angles.cos(), angles.sin()  # (T, D/2)
    left, right = x[..., :half], x[..., half:]
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)


class Attention(nn.Module):
    """Attention in which HEADS / KV_HEADS query heads share each head of keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.head_size = WIDTH // HEADS
        self.q_proj, self.out_proj = linear(WIDTH, WIDTH), linear(WIDTH, WIDTH)
        self.k_proj = linear(WIDTH, KV_HEADS * self.head_size)
        self.v_proj = linear(WIDTH, KV_HEADS * self.head_size)

    def split(self, x: Tensor) -> Tensor:
        """(B, T, H * D) -> (B, H, T, D)."""
        return x.view(*x.shape[:2], -1, self.head_size).transpose(1, 2)

    def keys_and_values(self, x: Tensor, where: Tensor | None) -> State:
        """Both (B, G, T, D); keys are turned if there are positions."""
        keys = self.split(self.k_proj(x))
        return keys if where is None else rotate(keys, where), self.split(self.v_proj(x))

    def forward(self, x: Tensor, known: State, mask: Tensor, where: Tensor | None) -> Tensor:
        """(B, T, E) -> (B, T, E); attends to known keys and values where the mask is true."""
        (keys, values), queries = known, self.split(self.q_proj(x))
        if where is not None:
            queries = rotate(queries, where)
        found = F.scaled_dot_product_attention(queries, keys, values, mask, enable_gqa=True)
        x = self.out_proj(found.transpose(1, 2).flatten(2))
        return x


class SwiGLU(nn.Module):
    """Feed-forward layer with a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = linear(WIDTH, HIDDEN), linear(WIDTH, HIDDEN)
        self.down_proj = linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, E) -> (B, T, E)."""
        x = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return x


class Layer(nn.Module):
    """Self-attention, in the decoder cross-attention, and a feed-forward layer, pre-normed."""

    def __init__(self, cross: bool) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(3 if cross else 2))
        self.self_attn, self.feed_forward = Attention(), SwiGLU()
        if cross:
            self.cross_attn = Attention()

    def forward(
        self, x: Tensor, where: Tensor, mask: Tensor, past: State = (), source: State = ()
    ) -> tuple[Tensor, State]:
        """(B, T, E) -> (B, T, E), and the keys and values of past and present positions.

        The source, of a decoder, is its keys, its values and the mask for them.
        """
        y = self.norms[0](x)
        known = self.self_attn.keys_and_values(y, where)
        if past:
            known = tuple(torch.cat(pair, dim=2) for pair in zip(past, known, strict=True))
        x = x + self.self_attn(y, known, mask, where)
        if source:
            x = x + self.cross_attn(self.norms[1](x), source[:2], source[2], None)
        return x + self.feed_forward(self.norms[-1](x)), known


class Recomputing(nn.Module):
    """The model without a cache: ``decode`` reads the whole prefix at every step."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(VOCABULARY), WIDTH)
        self.encoder = nn.ModuleList(Layer(cross=False) for _ in range(layers))
        self.decoder: Any = nn.ModuleList(Layer(cross=True) for _ in range(layers))
        self.encoder_norm, self.decoder_norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.lm_head = linear(WIDTH, len(VOCABULARY))

    def encode(self, input_ids: Tensor, attention_mask: Tensor) -> State:
        """The mask (B, 1, 1, S), and each decoder layer's keys and values of the source."""
        mask = attention_mask[:, None, None, :] != 0
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.embed(input_ids)
        for layer in self.encoder:
            x, _ = layer(x, positions, mask)
        x = self.encoder_norm(x)
        pairs = [layer.cross_attn.keys_and_values(x, None) for layer in self.decoder]
        return mask, *(tensor for pair in pairs for tensor in pair)

    def advance(
        self, tokens: Tensor, positions: Tensor, state: State, memory: State
    ) -> tuple[Tensor, State]:
        """Logits (B, T, V) of tokens (B, T) that follow on the state's, and the next state."""
        mask, *source = memory
        seen = torch.arange(state[0].shape[2] + tokens.shape[1], device=tokens.device)
        causal = seen <= positions[:, None]  # (T, P + T)
        x, present = self.embed(tokens), list[Tensor]()
        for i, layer in enumerate(self.decoder):
            own = slice(2 * i, 2 * i + 2)
            x, new = layer(x, positions, causal, state[own], (*source[own], mask))
            present += new
        return self.lm_head(self.decoder_norm(x)), tuple(present)

    def empty(self, *memory: Tensor) -> State:
        """Keys and values of no tokens, (B, G, 0, D) each."""
        return tuple(tensor[:, :, :0] for tensor in memory[1:])

    def decode(self, tokens: Tensor, *memory: Tensor) -> Tensor:
        """(B, T) -> logits (B, T, V)."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        return self.advance(tokens, positions, self.empty(*memory), memory)[0]


class Cached(Recomputing):
    """The same with a cache: ``step`` reads one token."""

    start = Recomputing.empty  # the state before the first token

    def step(
        self, token: Tensor, position: Tensor, state: State, memory: State
    ) -> tuple[Tensor, State]:
        """Token (B, 1) and position () -> logits (B, V), and a state one position longer."""
        logits, present = self.advance(token, position[None], state, memory)
        return logits[:, 0], present


def draw_date(draw: random.Random) -> tuple[str, str]:
    """A date as written, and normalised."""
    year, month, day = draw.randint(1900, 2099), draw.randint(1, 12), draw.randint(1, 28)
    name = MONTHS.split()[month - 1]
    name = draw.choice([name, name[:3], name.lower()])
    ordinal = f"{day}{draw.choice(['', '.', 'th'])}"
    forms = [f"{ordinal} {name} {year}", f"{name} {ordinal}, {year}", f"{ordinal} of {name} {year}"]
    forms += [f"{day}.{month}.{year}", f"{day:02}.{month:02}.{year}", f"{year}/{month:02}/{day:02}"]
    return draw.choice(forms), f"{year}-{month:02}-{day:02}"


def draw_pair(draw: random.Random) -> tuple[str, str]:
    """A date, or an interval of two."""
    (first, begin), (second, end) = draw_date(draw), draw_date(draw)
    if draw.random() < 0.6:
        return first, begin
    return draw.choice([f"from {first} to {second}", f"{first} - {second}"]), f"{begin}/{end}"


def write_tokenizer(path: Path) -> Tokenizer:
    """A tokenizer.json in which each character is a token."""
    ids = {piece: i for i, piece in enumerate(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=SPECIAL[UNK]))
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(path))
    return tokenizer


def pad(rows: list[list[int]]) -> Tensor:
    """(B, longest), filled up with PAD on the right."""
    return nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], True, PAD)


def train(model: Recomputing, tokenizer: Tokenizer, steps: int, draw: random.Random) -> None:
    """Cross-entropy on pairs that are drawn as they are needed."""
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=steps)
    for _ in range(steps):
        pairs = [draw_pair(draw) for _ in range(64)]
        source = pad([tokenizer.encode(written).ids for written, _ in pairs])
        target = pad([[BOS, *tokenizer.encode(normal).ids, EOS] for _, normal in pairs])
        logits = model.decode(target[:, :-1], *model.encode(source, (source != PAD).long()))
        loss = F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    print(f"trained {steps} steps to a loss of {loss.item():.4f}")


@torch.no_grad()
def greedy(model: Recomputing, ids: list[int]) -> list[int]:
    """The loop to agree with: tokens that PyTorch finds for one row, without start and end."""
    source = torch.tensor([ids])
    memory = model.encode(source, torch.ones_like(source))
    tokens = [BOS]
    while len(tokens) <= MAX_LENGTH:
        best = int(model.decode(torch.tensor([tokens]), *memory)[0, -1].argmax())
        if best == EOS:
            break
        tokens.append(best)
    return tokens[1:]


def write_bundle(model: Recomputing, bundle: Path, tokenizer: Path) -> None:
    """Write the bundle, whose graphs are compared with the model's own methods."""
    shape = ("batch", "source_length")
    export(
        model,
        bundle,
        inputs=[Input(name, "int64", shape) for name in ("input_ids", "attention_mask")],
        tokenizer=tokenizer,
        max_length=MAX_LENGTH,
        pad_id=PAD,
        bos_id=BOS,
        eos_id=EOS,
        unk_id=UNK,
        force=True,
    )


def main() -> None:
    """Train or load, export, decode without torch."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="the bundle to write")
    parser.add_argument("--steps", type=int, default=500, help="of training (default: 500)")
    parser.add_argument("--layers", type=int, default=2, help="of encoder and decoder, each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--weights", type=Path, help="of an earlier run, in place of training")
    parser.add_argument("--recompute", action="store_true", help="export the form without a cache")
    arguments = parser.parse_args()

    torch.manual_seed(arguments.seed)
    draw = random.Random(arguments.seed)
    model = (Recomputing if arguments.recompute else Cached)(arguments.layers)
    tokenizer_file = arguments.output.with_suffix(".tokenizer.json")
    tokenizer = write_tokenizer(tokenizer_file)
    if arguments.weights:
        model.load_state_dict(torch.load(arguments.weights, map_location="cpu"))
    else:
        train(model, tokenizer, arguments.steps, draw)
        torch.save(model.state_dict(), arguments.output.with_suffix(".pt"))
    write_bundle(model.eval(), arguments.output, tokenizer_file)

    # From here on nothing needs torch, but what PyTorch finds is compared.
    translator = Translator(arguments.output, threads=1)
    texts, normal = zip(*(draw_pair(draw) for _ in range(100)), strict=True)
    start = time.perf_counter()
    found = translator.translate(texts, batch_size=8)
    seconds = time.perf_counter() - start
    tokens = [result.hypotheses[0].tokens for result in found]
    eager = [greedy(model, tokenizer.encode(text).ids) for text in texts]
    right = sum(result.text == date for result, date in zip(found, normal, strict=True))
    same = sum(row == other for row, other in zip(tokens, eager, strict=True))
    speed = sum(map(len, tokens)) / seconds
    print(f"of 100 texts {right} right, {same} as PyTorch; {speed:.0f} tokens a second")


if __name__ == "__main__":
    main()
