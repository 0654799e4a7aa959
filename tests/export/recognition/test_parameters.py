"""Which parameters of a module became which weights."""

import torch
from torch import nn

from tfexport.export.recognition.parameters import report_parameters


class Model(nn.Module):
    """Parameters in the forms that modules have."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)

        def drawn(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(shape, generator=generator))

        self.packed, self.packed_bias = drawn(24, 8), drawn(24)
        self.of_heads, self.transposed = drawn(2, 8, 4), drawn(8, 16)
        self.table, self.unused = drawn(30, 8), drawn(8, 8)
        self.zeros = nn.Parameter(torch.zeros(8))
        self.shared = self.table
        self.positions = nn.Buffer(drawn(50, 8).detach())
        self.register_buffer("count", torch.tensor(3))


def test_every_form_of_a_parameter_is_found() -> None:
    model = Model()
    with torch.no_grad():
        weights = {
            "q": model.packed[:8], "k": 0.3 * model.packed[8:16], "v": model.packed[16:],
            "q.bias": model.packed_bias[:8], "k.bias": 0.3 * model.packed_bias[8:16],
            "heads": model.of_heads.movedim(1, 2).reshape(8, 8),
            "up": model.transposed.t(), "tokens": model.table * 8**0.5, "output": model.table,
            "rows": torch.cat([model.positions[:20], torch.zeros(4, 8)]), "norm.bias": model.zeros,
            "other": torch.randn(8, 8, generator=torch.Generator().manual_seed(2)),
            "sum": model.table[:8] + model.unused,
        }  # fmt: skip
        assert report_parameters(model, weights) == {
            "packed": ("q", "k", "v"), "packed_bias": ("q.bias",), "of_heads": ("heads",),
            "transposed": ("up",), "table": ("tokens", "output"), "unused": (),
            "shared": ("tokens", "output"), "positions": ("rows",),
        }  # fmt: skip


def test_rows_in_another_order_are_found() -> None:
    model = nn.Linear(6, 8, bias=False)
    order = torch.randperm(8, generator=torch.Generator().manual_seed(3))
    assert report_parameters(model, {"q": model.weight.detach()[order]}) == {"weight": ("q",)}


def test_what_is_all_alike_has_no_certain_origin() -> None:
    model = nn.LayerNorm(8)
    assert report_parameters(model, {"norm.weight": torch.ones(8)}) == {}
