"""annalog: Ben Trevett's Transformer, from the SMILES of a molecule to those of an analogue."""

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.real.packages import fetch, load
from benchmarks.real.published import Published, Way, module_ways
from tfexport.export import Input

REQUIREMENT = "annalog==1.0.6"
PAD, START, END = 1, 2, 3
POSITIONS = 102
CONFIG = Path(__file__).with_name("annalog.json")


@cache
def handler() -> Any:
    """The package's model and vocabularies."""
    files = fetch(REQUIREMENT) / "annalog" / "ckpt_and_vocab"
    vocabulary = str(files / "stereo_experiment_vocab_ttf.pkl")
    code = load(REQUIREMENT, "annalog.model_handler")
    return code.SMILESModelHandler(
        vocabulary, vocabulary, str(files / "Lev_extended.pt"), "cpu", POSITIONS
    )


def own_model() -> Any:
    """The package's model."""
    return handler().model


def reference(input_ids: Tensor, decoder_input_ids: Tensor) -> Tensor:
    """For ``--reference``: the package's own ``forward``."""
    logits: Tensor = own_model()(input_ids, decoder_input_ids)[0]
    return logits


class Prefix(nn.Module):
    """The whole prefix for every token."""

    def __init__(self, own: Any) -> None:
        super().__init__()
        self.own = own

    def encode(self, input_ids: Tensor) -> Any:
        mask = self.own.make_src_mask(input_ids)
        return self.own.encoder(input_ids, mask), mask

    def decode(self, tokens: Tensor, source: Tensor, mask: Tensor) -> Any:
        return self.own.decoder(tokens, source, self.own.make_trg_mask(tokens), mask)[0]


class Steps(Prefix):
    """The state holds what each layer has seen; compared with ``decode`` too."""

    def start(self, source: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        nothing = source.new_zeros(source.size(0), 0, source.size(2))
        return tuple(nothing for _ in self.own.decoder.layers)

    def step(self, token: Tensor, position: Tensor, state: Any, memory: Any) -> Any:
        (source, mask), decoder, after = memory, self.own.decoder, []
        x = decoder.tok_embedding(token) * decoder.scale + decoder.pos_embedding(position)
        for layer, past in zip(decoder.layers, state, strict=True):
            seen = torch.cat([past, x], 1)
            after.append(seen)
            x = layer.self_attn_layer_norm(x + layer.self_attention(x, seen, seen)[0])
            found, _ = layer.encoder_attention(x, source, source, mask)
            x = layer.enc_attn_layer_norm(x + found)
            x = layer.ff_layer_norm(x + layer.positionwise_feedforward(x))
        return decoder.fc_out(x)[:, 0], tuple(after)


def _arguments(model: nn.Module) -> dict[str, Any]:
    inputs = [Input("input_ids", "int64", ("batch", "length"))]
    return {"model": model, "inputs": inputs, "pad_id": PAD, "bos_id": START, "eos_id": END,
            "max_length": POSITIONS - 1}  # fmt: skip


def steps() -> dict[str, Any]:
    """For ``--module``."""
    return _arguments(Steps(own_model()))


def prefix() -> dict[str, Any]:
    """For ``--module``."""
    return _arguments(Prefix(own_model()))


def by_forward() -> dict[str, Any]:
    """For ``--module``: the package's class as it is."""
    return _arguments(own_model())


def published() -> Published:
    """The model, loaded."""
    found, model = handler(), own_model()
    # Its checks of molecules are not called with filter_invalid=False.
    code = load(REQUIREMENT, "annalog.model_files.multi_gen_final", "partialsmiles", "rdkit")
    checkpoint = fetch(REQUIREMENT) / "annalog" / "ckpt_and_vocab" / "Lev_extended.pt"

    def row(text: str) -> list[int]:
        ids: list[int] = found.SRC.process([found.SRC.preprocess(text)])[0].tolist()
        return ids

    def own(text: str) -> Any:
        source = torch.tensor([row(text)])
        (best,) = code.beam_search_decode(
            model, source, model.make_src_mask(source), found.TRG, beam_width=1,
            max_len=POSITIONS, device=torch.device("cpu"), use_masking=True,
        )  # fmt: skip
        tokens: list[int] = best[0][1:-1]
        return tokens

    def logits(text: str, tokens: list[int]) -> Any:
        with torch.no_grad():
            return reference(torch.tensor([row(text)]), torch.tensor([[START, *tokens]]))[0, -1]

    renamed = ("--checkpoint", str(checkpoint), "--config", str(CONFIG), "--format", "native")
    own_code = (*renamed, "--reference", f"{__name__}:reference")
    ways = (
        Way("rename table", renamed, (CONFIG,)),
        Way("rename table, `--reference`", own_code, (CONFIG, reference)),
        *module_ways(__name__, Prefix, Steps, (_arguments,), _arguments),
    )
    return Published("annalog", REQUIREMENT, ways, row, own, lambda text: POSITIONS - 1, logits)
