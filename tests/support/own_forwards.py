"""Models with the ``forward`` that their authors wrote, and ones that differ by one factor."""

from typing import Any, TypeVar

from torch import Tensor, nn

from tests.support import tutorial
from tests.support.originals import annotated, rmsnorm


class Seq2SeqTransformer(tutorial.TutorialModel):
    """PyTorch's tutorial, with its own signatures."""

    def forward(  # type: ignore[override]
        self,
        src: Tensor,
        trg: Tensor,
        src_mask: Tensor,
        tgt_mask: Tensor,
        src_padding_mask: Tensor,
        tgt_padding_mask: Tensor,
        memory_key_padding_mask: Tensor,
    ) -> Tensor:
        states = self.transformer(
            self.positional_encoding(self.src_tok_emb(src)),
            self.positional_encoding(self.tgt_tok_emb(trg)),
            src_mask,
            tgt_mask,
            None,
            src_padding_mask,
            tgt_padding_mask,
            memory_key_padding_mask,
        )
        logits: Tensor = self.generator(states)
        return logits

    def encode(self, src: Tensor, src_mask: Tensor) -> Tensor:  # type: ignore[override]
        x = self.positional_encoding(self.src_tok_emb(src))
        memory: Tensor = self.transformer.encoder(x, src_mask)
        return memory

    def decode(self, tgt: Tensor, memory: Tensor, tgt_mask: Tensor) -> Tensor:  # type: ignore[override]
        x = self.positional_encoding(self.tgt_tok_emb(tgt))
        states: Tensor = self.transformer.decoder(x, memory, tgt_mask)
        return states


class Steps(Seq2SeqTransformer):
    """The tutorial's ``encode`` and ``decode``, and a ``forward`` of one's own."""

    def forward(self, batch: Tensor) -> Tensor:  # type: ignore[override]
        raise AssertionError("not the tutorial's, so it is not run")


class Notebook(annotated.Annotated):
    """The notebook's EncoderDecoder: its ``forward`` gives states, before the generator."""

    def encode(self, src: Tensor, src_mask: Tensor) -> Tensor:
        memory: Tensor = self.encoder(self.src_embed(src), src_mask)
        return memory

    def decode(self, memory: Tensor, src_mask: Tensor, tgt: Tensor, tgt_mask: Tensor) -> Tensor:
        states: Tensor = self.decoder(self.tgt_embed(tgt), memory, src_mask, tgt_mask)
        return states

    def forward(self, src: Tensor, tgt: Tensor, src_mask: Tensor, tgt_mask: Tensor) -> Tensor:
        return self.decode(self.encode(src, src_mask), src_mask, tgt, tgt_mask)


class NotebookSteps(Notebook):
    """The notebook's ``encode`` and ``decode``, and a ``forward`` of one's own."""

    def forward(self, batch: Tensor) -> Tensor:  # type: ignore[override]
        raise AssertionError("not the notebook's, so it is not run")


class RMSNormNotebook(rmsnorm.RMSNormModel):
    """The RMSNorm Transformer, with its own names of parameters."""

    def forward(  # type: ignore[override]
        self, input_seq: Tensor, output_seq: Tensor, mask_mat: Tensor | None = None
    ) -> Tensor:
        return super().forward(input_seq, output_seq, mask_mat)


class Unscaled(nn.Module):
    """The tutorial's TokenEmbedding without ``* sqrt(d)``: the same keys, another model."""

    def __init__(self, tokens: tutorial.Tokens) -> None:
        super().__init__()
        self.embedding = tokens.embedding

    def forward(self, ids: Tensor) -> Tensor:
        x: Tensor = self.embedding(ids)
        return x


Model = TypeVar("Model", bound=tutorial.TutorialModel)
_SIZES: dict[str, Any] = {
    "d_model": 8, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1, "d_ff": 12,
}  # fmt: skip


def make(kind: type[Model]) -> Model:
    """A small tutorial model whose outputs differ from input to input: that of the fixtures."""
    model = kind(**_SIZES)
    model.load_state_dict(tutorial.make(seed=38, scale=3.0, **_SIZES).state_dict())
    return model.eval().requires_grad_(False)


def make_unscaled() -> Seq2SeqTransformer:
    """The same state dict; ``forward`` differs by the factor sqrt(d) on the embeddings."""
    model = make(Seq2SeqTransformer)
    model.src_tok_emb = Unscaled(model.src_tok_emb)  # type: ignore[assignment]
    model.tgt_tok_emb = Unscaled(model.tgt_tok_emb)  # type: ignore[assignment]
    return model
