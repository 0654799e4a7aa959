"""Attention and the encoder of torch.nn agree with eager code, rows without any key included."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.functional import scaled_dot_product_attention

from tests.support.combinations import few_of
from tests.support.layer_export import Axes, Called, check, export, normal, operators
from tfexport.errors import ExportError

pytestmark = pytest.mark.usefixtures("opset")
ROWS = normal("B", "S", 8)
TARGET = normal("B", "T", 8)
PADDING = Axes(("B", "S"), "padding")
SCATTERED = Axes(("B", "S"), "scattered")
ANY_MASK = Axes(("B", "S"), "mask")  # masks all keys of some rows
NESTED_WARNING = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
square_mask = nn.Transformer.generate_square_subsequent_mask


def attention(**options: Any) -> nn.MultiheadAttention:
    torch.manual_seed(5)
    return nn.MultiheadAttention(8, 2, **{"batch_first": True, **options})


def causal(rows: Tensor) -> Tensor:
    return torch.ones(rows.size(1), rows.size(1), dtype=torch.bool).triu(1)


@pytest.mark.parametrize("need_weights", few_of([True, False], True), ids=["weights", "no weights"])
@pytest.mark.parametrize(
    ("batch_first", "cross"),
    few_of(
        [(True, True), (False, True), (True, False), (False, False)], (True, False), (False, True)
    ),
    ids=["batch first-cross", "batch first-self", "time first-cross", "time first-self"],
)
def test_multihead_attention_with_rows_without_any_key(
    need_weights: bool, batch_first: bool, cross: bool
) -> None:
    def call(layer: nn.Module, rows: Tensor, mask: Tensor) -> Any:
        query = rows * 2 if cross else rows
        return layer(query, rows, rows, key_padding_mask=mask, need_weights=need_weights)

    rows = ROWS if batch_first else normal("S", "B", 8)
    check(attention(batch_first=batch_first), [rows, ANY_MASK], call)


MASKS: dict[str, Callable[[nn.Module, Tensor], Any]] = {
    "none": lambda m, x: m(x, x, x),
    "boolean": lambda m, x: m(x, x, x, attn_mask=causal(x), average_attn_weights=False),
    "float": lambda m, x: m(x, x, x, attn_mask=square_mask(x.size(1)), need_weights=False),
    "hint": lambda m, x: m(
        x, x, x, attn_mask=square_mask(x.size(1)), is_causal=True, need_weights=False
    ),
    "of each head": lambda m, x: m(
        x, x, x, attn_mask=causal(x).expand(x.size(0) * 2, -1, -1), need_weights=False
    ),
}


@pytest.mark.parametrize("call", MASKS.values(), ids=MASKS)
def test_masks_of_multihead_attention(call: Callable[..., Any]) -> None:
    check(attention(), [ROWS], call)


@pytest.mark.parametrize("kind", [torch.bool, torch.float32])
def test_both_masks_of_multihead_attention(kind: torch.dtype) -> None:
    def call(layer: nn.Module, rows: Tensor, mask: Tensor) -> Any:
        both = [causal(rows), mask]
        if kind != torch.bool:
            both = [torch.zeros(m.shape).masked_fill(m, -torch.inf) for m in both]
        return layer(rows, rows, rows, attn_mask=both[0], key_padding_mask=both[1])

    check(attention(), [ROWS, SCATTERED], call)


@pytest.mark.parametrize("need_weights", few_of([True, False], True), ids=["weights", "no weights"])
def test_more_keys_of_multihead_attention(need_weights: bool) -> None:
    def call(layer: nn.Module, rows: Tensor, mask: Tensor) -> Any:
        return layer(rows, rows, rows, key_padding_mask=mask, need_weights=need_weights)

    check(attention(add_bias_kv=True, add_zero_attn=True), [ROWS, ANY_MASK], call)


def test_keys_and_values_of_other_widths() -> None:
    inputs = [TARGET, normal("B", "S", 6), normal("B", "S", 4)]
    check(attention(kdim=6, vdim=4, bias=False), inputs)


@pytest.mark.parametrize("cross", few_of([True, False], True), ids=["cross", "self"])
def test_weights_are_not_split_as_the_graph_runs(cross: bool) -> None:
    def call(layer: nn.Module, rows: Tensor, target: Tensor) -> Any:
        return layer(target if cross else rows, rows, rows, need_weights=False)

    model = export(Called(attention(), call).eval(), [ROWS, TARGET])
    large = {
        value
        for value in model.graph.initializers.values()
        if value.const_value is not None and value.const_value.size >= 64
    }
    used = [node.op_type for node in model.graph if large & set(node.inputs)]
    assert len(used) == (4 if cross else 2)
    assert set(used) <= {"MatMul", "Gemm"}


def test_multihead_attention_without_a_batch_axis() -> None:
    inputs = [normal("T", 8), normal("S", 8)]
    check(attention(), inputs, lambda m, y, x: m(y, x, x))


def test_multihead_attention_as_a_function() -> None:
    def call(layer: nn.MultiheadAttention, rows: Tensor) -> Any:
        weights = (layer.in_proj_weight, layer.in_proj_bias, None, None, False, 0.5)
        output = (layer.out_proj.weight, layer.out_proj.bias)
        return F.multi_head_attention_forward(
            rows, rows, rows, 8, 2, *weights, *output, training=False
        )

    check(attention(), [normal("S", "B", 8)], call)


def heads(rows: Tensor, count: int = 2) -> Tensor:
    split: Tensor = rows.unflatten(-1, (count, -1)).transpose(1, 2)
    return split


PRODUCTS: dict[str, tuple[list[Axes], Callable[..., Tensor]]] = {
    "no mask": ([ROWS], lambda m, x: scaled_dot_product_attention(heads(x), heads(x), heads(x))),
    "boolean mask": (
        [TARGET, ROWS, ANY_MASK],
        lambda m, y, x, mask: scaled_dot_product_attention(
            heads(y), heads(x), heads(x), attn_mask=mask[:, None, None]
        ),
    ),
    "float mask": (
        [TARGET, ROWS, ANY_MASK],
        lambda m, y, x, mask: scaled_dot_product_attention(
            heads(y),
            heads(x),
            heads(x),
            attn_mask=torch.zeros(mask.shape).masked_fill(mask, -torch.inf)[:, None, None],
            scale=0.3,
        ),
    ),
    "causal after a past": (
        [TARGET, normal("B", 2, "P", 4)],
        lambda m, y, past: scaled_dot_product_attention(
            heads(y),
            torch.cat([past, heads(y)], 2),
            torch.cat([past, heads(y)], 2),
            is_causal=True,
        ),
    ),
    "grouped queries": (
        [normal("B", "S", 16), normal("B", "T", 8), Axes(("B", "T"), "mask")],
        lambda m, x, y, mask: F.scaled_dot_product_attention(
            heads(x, 4),
            heads(y),
            heads(y),
            attn_mask=mask[:, None, None],
            enable_gqa=True,
        ),
    ),
    "grouped queries, a mask of each head": (
        [normal("B", "S", 16), normal("B", "T", 8), Axes(("B", 4, "S", "T"), "scattered")],
        lambda m, x, y, mask: F.scaled_dot_product_attention(
            heads(x, 4), heads(y), heads(y), attn_mask=~mask, enable_gqa=True
        ),
    ),
    "no heads": ([ROWS], lambda m, x: F.scaled_dot_product_attention(x, x, x, is_causal=True)),
}


@pytest.mark.parametrize(("inputs", "call"), PRODUCTS.values(), ids=PRODUCTS)
def test_scaled_dot_product_attention(inputs: list[Axes], call: Callable[..., Tensor]) -> None:
    check(nn.Identity(), inputs, call)


LAYERS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "norm first": {"norm_first": True},
    "time first": {"batch_first": False},
    "no bias": {"bias": False},
    "another activation": {"activation": F.silu},
    "GELU with tanh": {"activation": nn.GELU("tanh")},  # which torch's fast path does not know
    "three heads": {"nhead": 3, "d_model": 9},
}


def encoder_layer(**options: Any) -> nn.TransformerEncoderLayer:
    torch.manual_seed(5)
    given = {"d_model": 8, "nhead": 2, "dim_feedforward": 12, "batch_first": True, **options}
    return nn.TransformerEncoderLayer(**given)


@pytest.mark.parametrize(
    "name", few_of(LAYERS, "as it is", "norm first", "time first", "GELU with tanh")
)
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")
@NESTED_WARNING
def test_encoder(name: str) -> None:
    options = LAYERS[name]
    width = options.get("d_model", 8)
    module = nn.TransformerEncoder(encoder_layer(**options), 1, norm=nn.LayerNorm(width))
    rows = normal("B", "S", width) if options.get("batch_first", True) else normal("S", "B", 8)
    check(module, [rows, PADDING], lambda m, x, mask: m(x, src_key_padding_mask=mask))


@NESTED_WARNING
def test_encoder_with_padding_on_any_side() -> None:
    module = nn.TransformerEncoder(encoder_layer(), 2)
    check(module, [ROWS, SCATTERED], lambda m, x, mask: m(x, src_key_padding_mask=mask))


@pytest.mark.parametrize("nested", few_of([True, False], True))
@NESTED_WARNING
def test_encoder_with_rows_without_any_key(nested: bool) -> None:
    module = nn.TransformerEncoder(encoder_layer(), 2, enable_nested_tensor=nested)
    check(module, [ROWS, ANY_MASK], lambda m, x, mask: m(x, src_key_padding_mask=mask))


@NESTED_WARNING
def test_encoder_that_does_not_check_its_mask() -> None:
    module = nn.TransformerEncoder(encoder_layer(), 2, mask_check=False)
    check(module, [ROWS, SCATTERED], lambda m, x, mask: m(x, src_key_padding_mask=mask))


def test_encoder_layer_with_both_masks() -> None:
    def call(layer: nn.Module, rows: Tensor, mask: Tensor) -> Any:
        return layer(rows, src_mask=causal(rows), src_key_padding_mask=mask)

    check(encoder_layer(), [ROWS, SCATTERED], call)


@pytest.mark.parametrize("fast", few_of([True, False], True), ids=["fast path", "no fast path"])
def test_encoder_with_a_bias_for_a_mask(fast: bool) -> None:
    """On its fast path torch masks every position whose bias is not zero."""

    def call(module: nn.Module, rows: Tensor) -> Any:
        position = torch.arange(rows.size(1))
        return module(rows, mask=-0.1 * (position[:, None] - position).abs())

    torch.backends.mha.set_fastpath_enabled(fast)
    try:
        check(nn.TransformerEncoder(encoder_layer(), 2), [ROWS], call)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


@pytest.mark.parametrize("hint", few_of([None, True, False], True))
def test_encoder_with_a_causal_mask(hint: bool | None) -> None:
    def call(module: nn.Module, rows: Tensor) -> Any:
        return module(rows, mask=square_mask(rows.size(1)), is_causal=hint)

    check(nn.TransformerEncoder(encoder_layer(), 2), [ROWS], call)


@pytest.mark.parametrize(  # tests/export/incremental exports a pre-norm one
    "options", few_of([{}, {"norm_first": True}], {}), ids=["post-norm", "pre-norm"]
)
def test_decoder(options: dict[str, Any]) -> None:
    torch.manual_seed(5)
    layer = nn.TransformerDecoderLayer(8, 2, 12, batch_first=True, **options)

    def call(module: nn.Module, target: Tensor, memory: Tensor, mask: Tensor) -> Any:
        ahead = square_mask(target.size(1))
        return module(target, memory, tgt_mask=ahead, memory_key_padding_mask=mask)

    check(nn.TransformerDecoder(layer, 2, nn.LayerNorm(8)), [TARGET, ROWS, ANY_MASK], call)


@pytest.mark.parametrize(
    "batch_first", few_of([True, False], True), ids=["batch first", "time first"]
)
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")
@NESTED_WARNING
def test_transformer(batch_first: bool) -> None:
    torch.manual_seed(5)
    module = nn.Transformer(8, 2, 1, 1, 12, batch_first=batch_first)

    def call(module: nn.Transformer, source: Tensor, target: Tensor, mask: Tensor) -> Any:
        return module(
            source,
            target,
            tgt_mask=module.generate_square_subsequent_mask(target.size(int(batch_first))),
            src_key_padding_mask=mask,
            memory_key_padding_mask=mask,
        )

    inputs = [ROWS, TARGET] if batch_first else [normal("S", "B", 8), normal("T", "B", 8)]
    check(module, [*inputs, PADDING], call)


def test_grouped_keys_are_not_copied_for_each_query_head() -> None:
    inputs, call = PRODUCTS["grouped queries"]
    found = operators(export(Called(nn.Identity(), call).eval(), inputs))
    assert not {"Expand", "Tile", "Gather"} & set(found)


def test_random_weights_are_refused() -> None:
    module = Called(
        nn.Identity(), lambda m, x: scaled_dot_product_attention(x, x, x, dropout_p=0.5)
    )
    with pytest.raises(ExportError, match=r"scaled_dot_product_attention: dropout_p=0\.5 drops"):
        export(module, [ROWS])
