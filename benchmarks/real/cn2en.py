"""cn2en: PyTorch's tutorial with two GRUs, Chinese characters to English words."""

from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.real.packages import load
from benchmarks.real.published import Published, module_ways
from tfexport.export import Input

REQUIREMENT = "cn2en==0.0.118"
START, END = range(2)
STEPS = 60  # its own loop has 1,000


def own_model() -> Any:
    """The package's model."""
    return load(REQUIREMENT, "cn2en.model").Model()


class Prefix(nn.Module):
    """The whole prefix for every token."""

    def __init__(self, own: Any) -> None:
        super().__init__()
        self.encoder, self.decoder = own.encoder, own.decoder

    def encode(self, input_ids: Tensor) -> Any:
        _, hidden = self.encoder.gru(self.encoder.embedding(input_ids.T))
        return hidden

    def decode(self, tokens: Tensor, hidden: Tensor) -> Any:
        output, _ = self.decoder.gru(self.decoder.embedding(tokens.T).relu(), hidden)
        return self.decoder.out(output).log_softmax(-1).transpose(0, 1)


class Steps(Prefix):
    """The state is that of the GRU; the package runs one sentence, token by token."""

    def start(self, hidden: Tensor) -> Tensor:
        return hidden

    def step(self, token: Tensor, position: Tensor, state: Any, memory: Any) -> Any:
        embedded = self.decoder.embedding(token.T).relu()
        output, hidden = self.decoder.gru(embedded, state[0])
        return self.decoder.softmax(self.decoder.out(output[0])), hidden


def _arguments(model: nn.Module) -> dict[str, Any]:
    inputs = [Input("input_ids", "int64", ("batch", "length"))]
    return {"model": model, "inputs": inputs, "pad_id": END, "bos_id": START, "eos_id": END,
            "max_length": STEPS}  # fmt: skip


def steps() -> dict[str, Any]:
    """For ``--module``."""
    return _arguments(Steps(own_model()))


def prefix() -> dict[str, Any]:
    """For ``--module``."""
    return _arguments(Prefix(own_model()))


class Both(nn.Module):
    """The package's encoder and decoder, which it keeps in a class that is no module."""

    def __init__(self, own: Any) -> None:
        super().__init__()
        self.encoder, self.decoder = own.encoder, own.decoder


def forward(model: Any, source: Tensor, target: Tensor) -> Any:
    """The target's logits, of which the package has a loop over single tokens."""
    _, hidden = model.encoder.gru(model.encoder.embedding(source))
    output, _ = model.decoder.gru(model.decoder.embedding(target).relu(), hidden)
    return model.decoder.out(output)


def by_forward() -> dict[str, Any]:
    """For ``--module``: the package's classes as they are, which are batch second."""
    return _arguments(Both(own_model())) | {
        "inputs": [Input("input_ids", "int64", ("length", "batch"))],
        "target": Input("target", "int64", ("target_length", "batch")),
        "forward": forward,
    }


def published() -> Published:
    """The model, loaded."""
    package, model = load(REQUIREMENT, "cn2en.model"), own_model()

    def sentence(text: str) -> list[Tensor]:
        found: list[Tensor] = package.tensorsFromSentence(model.input_lang, package.normalize(text))
        return found

    def own(text: str) -> Any:
        found: list[int] = package.translate(sentence(text), model.encoder, model.decoder)
        return found

    def logits(text: str, tokens: list[int]) -> Any:
        with torch.no_grad():
            hidden = model.encoder.initHidden()
            for token in sentence(text):
                _, hidden = model.encoder(token, hidden)
            for number in [START, *tokens]:
                output, hidden = model.decoder(torch.tensor([[number]]), hidden)
        return output[0]

    ways = module_ways(__name__, Prefix, Steps, (Both, forward, by_forward), _arguments)
    return Published(
        "cn2en", REQUIREMENT, ways, lambda text: [int(token) for token in sentence(text)],
        own, lambda text: STEPS, logits,
    )  # fmt: skip
