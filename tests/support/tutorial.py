"""An oracle: torch.nn.Transformer between embeddings and a generator, as tutorials build it.

Nothing of tfexport takes part. Sequence-first, like the tutorial's own code.
"""

import math
import warnings
from typing import Any

import torch
from torch import Tensor, nn


class Positions(nn.Module):
    def __init__(self, d_model: int, length: int) -> None:
        super().__init__()
        rate = torch.exp(-math.log(10000) * torch.arange(0, d_model, 2) / d_model)
        angles = torch.arange(length).unsqueeze(1) * rate
        table = torch.zeros(length, 1, d_model)
        table[:, 0, 0::2] = angles.sin()
        table[:, 0, 1::2] = angles.cos()[:, : d_model // 2]
        self.pos_embedding: Tensor
        self.register_buffer("pos_embedding", table)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.pos_embedding[: x.size(0)]
        return x


class Tokens(nn.Module):
    def __init__(self, size: int, d_model: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size, d_model)

    def forward(self, ids: Tensor) -> Tensor:
        x: Tensor = self.embedding(ids) * math.sqrt(self.embedding.embedding_dim)
        return x


class TutorialModel(nn.Module):
    """Stock nn.Transformer with token embeddings, positions and a generator."""

    def __init__(  # noqa: PLR0913 - one keyword for each size
        self,
        source_size: int = 17,
        target_size: int = 19,
        d_model: int = 16,
        num_heads: int = 4,
        encoder_layers: int = 2,
        decoder_layers: int = 2,
        d_ff: int = 24,
        length: int = 64,
        final_norms: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that sequence-first models miss a fast path
            self.transformer = nn.Transformer(
                d_model, num_heads, encoder_layers, decoder_layers, d_ff, dropout=0.1, **options
            )
        if not final_norms:
            self.transformer.encoder.norm = None
            self.transformer.decoder.norm = None
        self.generator = nn.Linear(d_model, target_size)
        self.src_tok_emb = Tokens(source_size, d_model)
        self.tgt_tok_emb = Tokens(target_size, d_model)
        self.positional_encoding = Positions(d_model, length)

    def encode(self, source: Tensor, padding: Tensor | None = None) -> Tensor:
        """(S, B) ids to (S, B, E); padding (B, S), True = pad."""
        x = self.positional_encoding(self.src_tok_emb(source))
        hidden: Tensor = self.transformer.encoder(x, src_key_padding_mask=padding)
        return hidden

    def decode(self, target: Tensor, hidden: Tensor, padding: Tensor | None = None) -> Tensor:
        """(T, B) ids to logits (T, B, V)."""
        mask = nn.Transformer.generate_square_subsequent_mask(target.size(0))
        x = self.transformer.decoder(
            self.positional_encoding(self.tgt_tok_emb(target)),
            hidden,
            tgt_mask=mask,
            memory_key_padding_mask=padding,
        )
        logits: Tensor = self.generator(x)
        return logits

    def forward(self, source: Tensor, target: Tensor, padding: Tensor | None = None) -> Tensor:
        return self.decode(target, self.encode(source, padding), padding)


@torch.no_grad()
def greedy(model: TutorialModel, ids: list[int], limit: int, bos: int, eos: int) -> list[int]:
    """The tutorial's loop: one sentence, the whole prefix again for every token, no cache."""
    hidden = model.encode(torch.tensor(ids).unsqueeze(1))
    target = torch.tensor([[bos]])
    for _ in range(limit):
        token = int(model.decode(target, hidden)[-1, 0].argmax())
        if token == eos:
            break
        target = torch.cat([target, torch.tensor([[token]])])
    return target[1:, 0].tolist()


def make(seed: int = 0, scale: float = 2.0, **options: Any) -> TutorialModel:
    """A model with random weights, large enough that its outputs differ from input to input."""
    torch.manual_seed(seed)
    model = TutorialModel(**options).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.mul_(scale)
            elif "norm" in name or "bias" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
        # Listen to the source more than to the last token, or every output repeats one token.
        model.tgt_tok_emb.embedding.weight.mul_(0.1)
        for layer in model.transformer.decoder.layers:
            layer.multihead_attn.out_proj.weight.mul_(3.0)
    return model.requires_grad_(False)
