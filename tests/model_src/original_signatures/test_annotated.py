"""The Annotated Transformer's signature: equal to the original under its own keep-masks."""

from pathlib import Path

import pytest
import torch

from tests.model_src.original_signatures.compare import close, load
from tests.support.originals import annotated
from tests.support.originals.weights import shake
from tfexport.errors import InputError
from tfexport.model_src import (
    AnnotatedTransformer,
    load_checkpoint,
)
from tfexport.model_src.masks import subsequent_mask


@pytest.mark.parametrize("residual", ["pre", "res_post"])
@pytest.mark.parametrize("layers", [1, 3])
def test_annotated_transformer_equals_its_original(
    tmp_path: Path, residual: str, layers: int
) -> None:
    theirs = shake(annotated.Annotated(layers=layers, residual=residual))
    torch.save(theirs.state_dict(), tmp_path / "model.pt")
    settings = ["num_heads=4"] + (["norm_placement=res_post"] if residual == "res_post" else [])
    found = load_checkpoint(tmp_path, settings=settings)
    assert found.layout == "annotated"
    assert found.config.mask_fill == -1e9
    assert found.config.norm_eps == 1e-6
    src, tgt = torch.randint(0, 17, (3, 6)), torch.randint(0, 19, (3, 5))
    src_mask = torch.tensor([[1] * 6, [1, 1, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0]]).unsqueeze(1)
    tgt_mask = annotated.target_mask(torch.tensor([[1] * 5, [1, 1, 1, 0, 0], [0, 0, 1, 1, 1]]))
    ours = AnnotatedTransformer(found.build())
    # The last target begins with padding: its first rows see nothing at all, and spread evenly.
    close(ours(src, tgt, src_mask, tgt_mask), theirs(src, tgt, src_mask, tgt_mask))
    close(ours(src, tgt, src_mask.bool(), tgt_mask), theirs(src, tgt, src_mask, tgt_mask))


def test_subsequent_mask_of_the_notebook() -> None:
    assert torch.equal(subsequent_mask(4), annotated.target_mask(torch.ones(1, 4)))


def test_keep_mask_of_another_form_is_refused(tmp_path: Path) -> None:
    ours = AnnotatedTransformer(load(annotated.Annotated(), tmp_path, "num_heads=4"))
    src, tgt = torch.ones(2, 3, dtype=torch.long), torch.ones(2, 4, dtype=torch.long)
    with pytest.raises(InputError, match=r"keep-mask has shape \(2, 3\); expected \(B, T, S\)"):
        ours(src, tgt, torch.ones(2, 3).long(), None)
    with pytest.raises(InputError, match="keep-mask has dtype"):
        ours(src, tgt, torch.ones(2, 1, 3), None)
