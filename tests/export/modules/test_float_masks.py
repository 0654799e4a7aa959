"""A module for which torch's fast path of attention gives NaN, as pytorch issue 118628 says."""

from pathlib import Path

import pytest
import torch
from torch import nn

from tests.support.eager_search import Rules, greedy
from tests.support.modules import relative_bias
from tests.support.modules.kind import BOS, EOS, PAD
from tfexport.export import Input, export
from tfexport.runtime import Translator

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:enable_nested_tensor:UserWarning"),
]
KIND = relative_bias.KIND


class WithRelu(relative_bias.RelativeModel):
    """ReLU is what lets torch take its fast path, which takes float masks for boolean ones."""

    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.Transformer(32, relative_bias.HEADS, 1, 1, 48, batch_first=True)


@pytest.mark.usefixtures("no_beam_graph", "few_shapes")
def test_float_masks_are_added_whatever_torch_does_in_eval_mode(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = WithRelu().eval().requires_grad_(False)
    row = KIND.rows(1, 1)[0]
    memory, _ = model.encode(*(torch.from_numpy(array)[None] for array in row.values()))
    assert memory.isnan().all(), "torch has mended it"
    export(
        model, tmp_path / "relu.bundle", inputs=[Input(*each) for each in KIND.inputs],
        pad_id=PAD, bos_id=BOS, eos_id=EOS, max_length=20,
    )  # fmt: skip
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        expected = greedy(model, row, Rules(max_length=12))
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    with Translator(tmp_path / "relu.bundle") as translator:
        found = translator.generate_from([row], max_length=12)[0].hypotheses[0]
    assert found.tokens == expected.tokens
