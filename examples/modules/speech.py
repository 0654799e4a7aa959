"""Frames of sound to phonemes, with a recurrent decoder that remembers where it has listened.

    python examples/modules/speech.py --output speech.bundle --samples spoken.npz
    tfexport translate speech.bundle --inputs spoken.npz

The sounds are made up: each phoneme is a pair of formants, resonances that move while it lasts,
spoken faster or slower by a higher or lower voice in some noise. The model is that of Chorowski et
al. 2015: convolution and bidirectional GRU over the frames, and a GRU that attends to them with
the help of where it attended before. Its state has a fixed size but for those weights, one for
each place of the memory.

Axes: B batch, F frames, C channels, S places of the memory, E size of the memory, D size of the
decoder, T phonemes.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from tfexport.export import Input, export
from tfexport.runtime import Translator

PAD, BOS, EOS = range(3)
SPECIAL = ["<pad>", "<s>", "</s>"]
# First and second formant, each from its beginning to its end, in channels; and the loudness.
PHONEMES = {
    "AA": (9, 9, 13, 13, 1.0),
    "IY": (3, 3, 19, 19, 1.0),
    "UW": (3, 3, 8, 8, 1.0),
    "EH": (7, 7, 16, 16, 1.0),
    "AY": (9, 4, 13, 19, 1.0),
    "AW": (9, 4, 13, 8, 1.0),
    "M": (2, 2, 10, 12, 0.5),
    "N": (2, 2, 14, 15, 0.5),
    "L": (4, 5, 10, 13, 0.7),
    "R": (5, 6, 11, 9, 0.7),
    "W": (2, 6, 5, 9, 0.7),
    "Y": (2, 5, 21, 17, 0.7),
}
NAMES = list(PHONEMES)
CHANNELS, WIDTH, DECODER_WIDTH = 24, 64, 96
MAX_LENGTH = 16

State = tuple[Tensor, Tensor, Tensor]
Frames = NDArray[np.float32]


class Listener(nn.Module):
    """Encoder over frames, and a decoder with attention that takes one phoneme a step."""

    def __init__(self) -> None:
        super().__init__()
        memory = 2 * WIDTH
        self.convolution = nn.Conv1d(CHANNELS, WIDTH, kernel_size=5, stride=2, padding=2)
        self.encoder = nn.GRU(WIDTH, WIDTH, batch_first=True, bidirectional=True)
        self.key_proj = nn.Linear(memory, WIDTH)
        self.embed = nn.Embedding(len(SPECIAL) + len(NAMES), WIDTH)
        self.decoder = nn.GRUCell(WIDTH + memory, DECODER_WIDTH)
        self.query_proj = nn.Linear(DECODER_WIDTH, WIDTH, bias=False)
        self.location = nn.Conv1d(1, WIDTH, kernel_size=9, padding=4, bias=False)
        self.score = nn.Linear(WIDTH, 1, bias=False)
        self.lm_head = nn.Linear(DECODER_WIDTH + memory, len(SPECIAL) + len(NAMES))

    def encode(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        """(B, F, C) -> the memory: states (B, S, E), S half of F, and their keys (B, S, WIDTH)."""
        x = F.relu(self.convolution(frames.transpose(1, 2))).transpose(1, 2)
        states, _ = self.encoder(x)
        return states, self.key_proj(states)

    def start(self, states: Tensor, keys: Tensor) -> State:
        """Zeros: the decoder (B, D), what it heard last (B, E), where it has listened (B, S)."""
        batch, places, width = states.shape
        return (
            states.new_zeros(batch, DECODER_WIDTH),
            states.new_zeros(batch, width),
            states.new_zeros(batch, places),
        )

    def step(
        self, token: Tensor, position: Tensor, state: State, memory: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, State]:
        """Token (B, 1) -> logits (B, V), and the next state. The position is not needed."""
        (hidden, heard, attended), (states, keys) = state, memory
        hidden = self.decoder(torch.cat([self.embed(token[:, 0]), heard], dim=1), hidden)
        before = self.location(attended[:, None]).transpose(1, 2)  # (B, S, WIDTH)
        query = self.query_proj(hidden)[:, None]
        weights = self.score(torch.tanh(keys + query + before)).squeeze(2).softmax(dim=1)
        heard = (weights[:, None] @ states).squeeze(1)  # (B, 1, S) x (B, S, E) -> (B, E)
        logits = self.lm_head(torch.cat([hidden, heard], dim=1))
        return logits, (hidden, heard, attended + weights)


def speak(phonemes: list[int], draw: np.random.Generator) -> Frames:
    """Spoken phonemes, (F, C): some silence, and 3 to 9 frames for each."""
    speed, voice = draw.uniform(3.5, 7.5), draw.uniform(-0.8, 0.8)
    channels = np.arange(CHANNELS)
    frames = [np.zeros((int(draw.integers(3, 8)), CHANNELS))]
    for phoneme in phonemes:
        first, first_end, second, second_end, loudness = PHONEMES[NAMES[phoneme]]
        along = np.linspace(0, 1, max(3, round(speed * draw.uniform(0.8, 1.2))))[:, None]
        formants = (first + (first_end - first) * along, second + (second_end - second) * along)
        peaks = [np.exp(-((channels - formant - voice) ** 2) / 2) for formant in formants]
        frames.append(loudness * (peaks[0] + peaks[1]))
    frames.append(np.zeros((int(draw.integers(3, 8)), CHANNELS)))
    sound = np.concatenate(frames)
    # Neighbours run into each other.
    sound[1:-1] = sound[:-2] / 4 + sound[1:-1] / 2 + sound[2:] / 4
    sound = sound * draw.uniform(0.7, 1.3) + draw.normal(0, 0.1, sound.shape)
    return sound.astype(np.float32)


def draw_phonemes(draw: np.random.Generator) -> list[int]:
    """2 to 8 phonemes, of which no two that follow each other are the same."""
    found = [int(draw.integers(len(NAMES)))]
    for _ in range(int(draw.integers(1, 8))):
        found.append((found[-1] + int(draw.integers(1, len(NAMES)))) % len(NAMES))
    return found


def batch(size: int, draw: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Frames (B, F, C), filled up with silence, and BOS phonemes EOS (B, T), filled up with PAD."""
    said = [draw_phonemes(draw) for _ in range(size)]
    spoken = [speak(phonemes, draw) for phonemes in said]
    longest = max(map(len, spoken))
    frames = draw.normal(0, 0.1, (size, longest, CHANNELS)).astype(np.float32)
    tokens = torch.full((size, max(map(len, said)) + 2), PAD)
    for i, (phonemes, sound) in enumerate(zip(said, spoken, strict=True)):
        frames[i, : len(sound)] = sound
        row = [BOS, *(len(SPECIAL) + phoneme for phoneme in phonemes), EOS]
        tokens[i, : len(row)] = torch.tensor(row)
    return torch.from_numpy(frames), tokens


def train(model: Listener, steps: int, draw: np.random.Generator) -> None:
    """Cross-entropy on sounds that are made as they are needed."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=5e-3, total_steps=steps)
    for step in range(steps):
        frames, tokens = batch(64, draw)
        memory = model.encode(frames)
        state, found = model.start(*memory), []
        for position in range(tokens.shape[1] - 1):
            token = tokens[:, position : position + 1]
            logits, state = model.step(token, torch.tensor(position), state, memory)
            found.append(logits)
        loss = F.cross_entropy(
            torch.stack(found, dim=2), tokens[:, 1:], ignore_index=PAD
        )  # (B, V, T)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}")
    model.eval()


@torch.no_grad()
def greedy(model: Listener, frames: Frames) -> list[int]:
    """The loop to agree with: tokens that PyTorch finds for one sound, without start and end."""
    memory = model.encode(torch.from_numpy(frames)[None])
    state, token, found = model.start(*memory), BOS, list[int]()
    while len(found) < MAX_LENGTH:
        inputs = torch.tensor([[token]]), torch.tensor(len(found))
        logits, state = model.step(*inputs, state, memory)
        token = int(logits[0].argmax())
        if token == EOS:
            break
        found.append(token)
    return found


def write_bundle(model: Listener, bundle: Path) -> None:
    """Write the bundle, whose graphs are compared with the model's own methods."""
    words = bundle.with_suffix(".txt")
    words.write_text("".join(f"{name}\n" for name in [*SPECIAL, *NAMES]), encoding="utf-8")
    draw = np.random.default_rng(1)
    export(
        model,
        bundle,
        inputs=[Input("frames", "float32", ("batch", "frames", CHANNELS))],
        pad_id=PAD,
        bos_id=BOS,
        eos_id=EOS,
        max_length=MAX_LENGTH,
        tokenizer=words,
        examples=[{"frames": speak(draw_phonemes(draw), draw)} for _ in range(4)],
        force=True,
    )


def main() -> None:
    """Train, export, decode without torch."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="the bundle to write")
    parser.add_argument("--samples", type=Path, help="an .npz to write, of 20 sounds")
    parser.add_argument("--steps", type=int, default=500, help="of training (default: 500)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    torch.manual_seed(arguments.seed)
    draw = np.random.default_rng(arguments.seed)
    model = Listener()
    train(model, arguments.steps, draw)
    torch.save(model.state_dict(), arguments.output.with_suffix(".pt"))
    write_bundle(model, arguments.output)

    # From here on nothing needs torch, but what PyTorch finds is compared.
    said = [draw_phonemes(draw) for _ in range(100)]
    spoken = [speak(phonemes, draw) for phonemes in said]
    if arguments.samples:
        rows: dict[str, Any] = {f"frames/{i}": sound for i, sound in enumerate(spoken[:20])}
        np.savez(arguments.samples, **rows)
    translator = Translator(arguments.output)
    found = translator.generate_from([{"frames": sound} for sound in spoken])
    tokens = [result.hypotheses[0].tokens for result in found]
    right = sum(
        result.text == " ".join(NAMES[phoneme] for phoneme in phonemes)
        for result, phonemes in zip(found, said, strict=True)
    )
    same = sum(row == greedy(model, sound) for row, sound in zip(tokens, spoken, strict=True))
    print(f"of 100 sounds {right} right, {same} as PyTorch")


if __name__ == "__main__":
    main()
