"""The layout of the Annotated Transformer: its tables."""

from pathlib import Path

import torch

from tests.model_src.original_signatures.compare import load
from tests.support.originals import annotated
from tests.support.originals.weights import shake


def test_annotated_table_is_the_files_own(tmp_path: Path) -> None:
    theirs = shake(annotated.Annotated())
    theirs.get_buffer("tgt_embed.1.pe").mul_(2.0)
    model = load(theirs, tmp_path, "num_heads=4")
    source = model.get_buffer("source_embedding.positions.table")
    target = model.get_buffer("target_embedding.positions.table")
    assert torch.equal(target, 2 * source)
