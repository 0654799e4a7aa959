"""g2p-fa: an LSTM from Persian letters to phonemes."""

from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.real.packages import load
from benchmarks.real.published import Published, module_ways
from tfexport.export import Input

REQUIREMENT = "g2p-fa==1.1.0"
PAD, START, END = range(3)
LETTERS, STEPS = 30, 29  # a word is padded to 30, and the padding is read; its loop has 29 steps


def own_model() -> Any:
    """The package's model. It leaves dropout active, which makes its results random."""
    return load(REQUIREMENT, "g2p_fa.g2p_fa").G2P_Fa().model.eval()


class Prefix(nn.Module):
    """The whole prefix for every token."""

    def __init__(self, own: Any) -> None:
        super().__init__()
        self.encoder, self.decoder = own.encoder, own.decoder

    def encode(self, letters: Tensor) -> Any:
        return self.encoder(letters.T)

    def decode(self, tokens: Tensor, hidden: Tensor, cell: Tensor) -> Any:
        states, _ = self.decoder.rnn(self.decoder.embedding(tokens.T), (hidden, cell))
        return self.decoder.fc_out(states).transpose(0, 1)


class Steps(Prefix):
    """The state is that of the LSTM."""

    def start(self, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        return hidden, cell

    def step(self, token: Tensor, position: Tensor, state: Any, memory: Any) -> Any:
        logits, *state = self.decoder(token[:, 0], *state)
        return logits, tuple(state)


def _arguments(model: nn.Module) -> dict[str, Any]:
    inputs = [Input("letters", "int64", ("batch", LETTERS))]
    return {"model": model, "inputs": inputs, "pad_id": PAD, "bos_id": START, "eos_id": END,
            "max_length": STEPS}  # fmt: skip


def steps() -> dict[str, Any]:
    """For ``--module``."""
    return _arguments(Steps(own_model()))


def prefix() -> dict[str, Any]:
    """For ``--module``."""
    return _arguments(Prefix(own_model()))


def forward(model: Any, letters: Tensor, target: Tensor) -> Any:
    """The target's logits, without the package's loop that chooses inputs at random."""
    states, _ = model.decoder.rnn(model.decoder.embedding(target), model.encoder(letters))
    return model.decoder.fc_out(states)


def by_forward() -> dict[str, Any]:
    """For ``--module``: the package's class as it is, which is batch second."""
    return _arguments(own_model()) | {
        "inputs": [Input("letters", "int64", (LETTERS, "batch"))],
        "target": Input("target", "int64", ("target_length", "batch")),
        "forward": forward,
    }


def published() -> Published:
    """The model, loaded."""
    model, utils = own_model(), load(REQUIREMENT, "g2p_fa.utils")

    def row(text: str) -> dict[str, Any]:
        return {"letters": utils.word2tensor(text).numpy()}

    def own(text: str) -> Any:
        start = utils.IPA2tensor("b").unsqueeze(1)  # as G2P_Fa.__call__ has it
        with torch.no_grad():
            found = model(utils.word2tensor(text).unsqueeze(1), start, 0).argmax(2)[1:, 0].tolist()
        return found[: found.index(END)] if END in found else found

    def logits(text: str, tokens: list[int]) -> Any:
        target = torch.tensor([START, *tokens, PAD]).unsqueeze(1)
        with torch.no_grad():
            return model(utils.word2tensor(text).unsqueeze(1), target, 1)[-1, 0]

    ways = module_ways(__name__, Prefix, Steps, (forward, by_forward), _arguments)
    return Published("g2p_fa", REQUIREMENT, ways, row, own, lambda text: STEPS, logits)
