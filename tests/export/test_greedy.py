"""The best token by blocks is the argmax, ties and infinities included."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tfexport.export.greedy import best_in_blocks, block_size


@given(
    st.integers(1, 3),
    st.sampled_from([7, 256, 512, 1000, 6000, 8000, 8011, 32000]),
    st.integers(0, 10**6),
    st.integers(2, 500),
)
def test_best_in_blocks_is_the_argmax(batch: int, vocab: int, seed: int, levels: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    # Few levels make many ties; some ids are ruled out altogether.
    logits = torch.randint(levels, (batch, 1, vocab), generator=draw).float()
    logits[torch.rand(logits.shape, generator=draw) < 0.2] = -torch.inf
    lowest = torch.from_numpy(logits.numpy().argmax(-1))  # numpy's gives the first of equal ones
    assert torch.equal(best_in_blocks(logits, block_size(vocab)), lowest)


@pytest.mark.parametrize(
    ("vocab", "block"), [(32000, 160), (8000, 80), (8011, 8011), (100, 100), (50257, 29)]
)
def test_a_block_divides_the_vocabulary(vocab: int, block: int) -> None:
    found = block_size(vocab)
    assert vocab % found == 0
    assert found == block
