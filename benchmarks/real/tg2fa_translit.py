"""tg2fa-translit: PyTorch's translation tutorial, Tajik letters to Persian ones."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.real.packages import fetch, load
from benchmarks.real.published import Published, Way, module_ways
from tfexport.export import Input

REQUIREMENT = "tg2fa-translit==1.0"
PAD, START, END = 1, 2, 3
SETTINGS = ("--set", "num_heads=8", "--set", "framing=tutorial")


def own_model() -> Any:
    """The package's model."""
    return load(REQUIREMENT, "tg2fa_translit.transformer").transformer


def reference(input_ids: Tensor, decoder_input_ids: Tensor) -> Tensor:
    """For ``--reference``: the package's own ``forward``."""
    logits: Tensor = forward(own_model(), input_ids.T, decoder_input_ids.T)
    return logits.transpose(0, 1)


class Prefix(nn.Module):
    """The whole prefix for every token."""

    def __init__(self, own: Any) -> None:
        super().__init__()
        self.own = own

    def encode(self, input_ids: Tensor) -> Any:
        embedded = self.own.positional_encoding(self.own.src_tok_emb(input_ids.T))
        return self.own.transformer.encoder(embedded).transpose(0, 1)

    def decode(self, tokens: Tensor, memory: Tensor) -> Any:
        later = torch.ones(tokens.size(1), tokens.size(1), dtype=torch.bool).triu(1)
        embedded = self.own.positional_encoding(self.own.tgt_tok_emb(tokens.T))
        states = self.own.transformer.decoder(embedded, memory.transpose(0, 1), later)
        return self.own.generator(states).transpose(0, 1)


class Steps(Prefix):
    """The state holds what each layer has seen; compared with ``decode`` too."""

    def start(self, memory: Tensor) -> tuple[Tensor, ...]:
        nothing = memory.new_zeros(memory.size(0), 0, memory.size(2))
        return tuple(nothing for _ in self.own.transformer.decoder.layers)

    def step(self, token: Tensor, position: Tensor, state: Any, memory: Any) -> Any:
        source = memory[0].transpose(0, 1)
        x = self.own.tgt_tok_emb(token.T) + self.own.positional_encoding.pos_embedding[position]
        after = []
        for layer, past in zip(self.own.transformer.decoder.layers, state, strict=True):
            after.append(torch.cat([past, x.transpose(0, 1)], 1))
            seen = after[-1].transpose(0, 1)
            x = layer.norm1(x + layer.self_attn(x, seen, seen, need_weights=False)[0])
            x = layer.norm2(x + layer.multihead_attn(x, source, source, need_weights=False)[0])
            x = layer.norm3(x + layer.linear2(layer.linear1(x).relu()))
        return self.own.generator(self.own.transformer.decoder.norm(x))[0], tuple(after)


def _arguments(model: nn.Module) -> dict[str, Any]:
    inputs = [Input("input_ids", "int64", ("batch", "length"))]
    return {"model": model, "inputs": inputs, "pad_id": PAD, "bos_id": START, "eos_id": END,
            "max_length": 200}  # fmt: skip


def steps() -> dict[str, Any]:
    """For ``--module``."""
    return _arguments(Steps(own_model()))


def prefix() -> dict[str, Any]:
    """For ``--module``."""
    return _arguments(Prefix(own_model()))


def forward(model: Any, source: Tensor, target: Tensor) -> Any:
    """The package's own ``forward``, with the masks that its loop makes."""
    nothing = torch.zeros(len(source), len(source), dtype=torch.bool)
    later = torch.ones(len(target), len(target), dtype=torch.bool).triu(1)
    return model(source, target, nothing, later, None, None, None)


def by_forward() -> dict[str, Any]:
    """For ``--module``: the package's class as it is, which is batch second."""
    return _arguments(own_model()) | {
        "inputs": [Input("input_ids", "int64", ("length", "batch"))],
        "target": Input("target", "int64", ("target_length", "batch")),
        "forward": forward,
    }


def published() -> Published:
    """The model, loaded."""
    model, code = own_model(), load(REQUIREMENT, "tg2fa_translit.decode")
    checkpoint = fetch(REQUIREMENT) / "tg2fa_translit" / "model_2.9.zip"

    def row(text: str) -> list[int]:
        return [START, *(code.tg_voc[letter] for letter in text), END]

    def limit(text: str) -> int:
        return len(row(text)) + 9  # its own loop has one less than length + 10

    def own(text: str) -> Any:
        ids = np.array(row(text)).reshape(-1, 1)
        nothing = np.zeros((len(ids), len(ids)), bool)
        found = code.greedy(model, ids, nothing, max_len=len(ids) + 10)[1:, 0].tolist()
        return found[:-1] if found[-1] == END else found

    def logits(text: str, tokens: list[int]) -> Any:
        with torch.no_grad():
            return reference(torch.tensor([row(text)]), torch.tensor([[START, *tokens]]))[0, -1]

    stock = ("--checkpoint", str(checkpoint), *SETTINGS)
    own_code = (*stock, "--reference", f"{__name__}:reference")
    ways = (
        Way("`--checkpoint`", stock),
        Way("`--checkpoint`, `--reference`", own_code, (reference,)),
        *module_ways(__name__, Prefix, Steps, (forward, by_forward), _arguments),
    )
    return Published("tg2fa_translit", REQUIREMENT, ways, row, own, limit, logits)
