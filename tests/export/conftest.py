"""Models that several files of these tests export."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import SETTINGS, Once, compare_few_shapes
from tests.support import tutorial
from tfexport.export import export
from tfexport.model_src import Transformer, TransformerConfig, build_transformer

SIZES: dict[str, Any] = {
    "d_model": 32,
    "num_heads": 2,
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
    "d_ff": 48,
    "source_vocab_size": 50,
    "target_vocab_size": 50,
    "max_positions": 40,
    **SETTINGS,
}
LARGE = 12_000  # words: the exporter leaves the transpose of a table above 1 MB


TEXT_SIZE = 420  # words


def large(tied: bool) -> Transformer:
    """A model whose weights are hardly more than its tables."""
    torch.manual_seed(0)
    sizes = {**SIZES, "source_vocab_size": LARGE, "target_vocab_size": LARGE}
    return build_transformer(TransformerConfig(**sizes, tie_embeddings=tied, tie_output=tied))


def pre_norm() -> tutorial.TutorialModel:
    """What differs most from the tutorial model, of what the original itself says."""
    return tutorial.make(
        norm_first=True, activation="gelu", d_model=8, num_heads=2, encoder_layers=1,
        decoder_layers=1, d_ff=12,
    )  # fmt: skip


def make_wide(tied: bool) -> tutorial.TutorialModel:
    """A model whose matrices are large enough to be quantised."""
    made = tutorial.make(
        seed=3, scale=1.5, d_model=64, num_heads=4, d_ff=96, source_size=110 if tied else 90,
        target_size=110, encoder_layers=1, decoder_layers=1,
    )  # fmt: skip
    if tied:
        made.generator.weight = made.tgt_tok_emb.embedding.weight
        made.src_tok_emb.embedding.weight = made.tgt_tok_emb.embedding.weight
    return made


@pytest.fixture(scope="session")
def wide() -> tutorial.TutorialModel:
    return make_wide(tied=False)


@pytest.fixture(scope="session")
def wide_bundle(once: Once, wide: tutorial.TutorialModel) -> Path:
    """In float32. Do not change it."""

    def make(path: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            compare_few_shapes(patch)  # that it is compared at all
            export(wide, path, config=SETTINGS)

    return once("wide.bundle", make)


@pytest.fixture(scope="session")
def tied_bundle(once: Once) -> Path:
    """Of the wide model with one table for all. Do not change it."""

    def make(path: Path) -> None:
        export(make_wide(tied=True), path, config=SETTINGS, verify=False)

    return once("tied.bundle", make)


@pytest.fixture(scope="session")
def text_model() -> tutorial.TutorialModel:
    """A model for tokenizers that are trained on text."""
    return tutorial.make(
        seed=38, scale=3.0, source_size=TEXT_SIZE, target_size=TEXT_SIZE, d_model=32, num_heads=2,
        encoder_layers=1, decoder_layers=1, d_ff=40,
    )  # fmt: skip
