"""Key tables: placeholders, conversions and their way back, on toy tables."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from tfexport.model_src.checkpoint.keymap import (
    POSITION_TABLE,
    THIRDS,
    UNCHANGED,
    Convert,
    KeyTable,
    Shape,
    Split,
    convert_weights,
)

TABLE = KeyTable(
    {
        "{side}_emb": "{side}_embedding.weight",
        "{prefix}{stack}.{layer}.{attention}.{qkv}.{kind}": (
            "{stack}.{layer}.{attention}.{qkv}.{kind}",
            UNCHANGED,
        ),
        "{stack}.{layer}.packed_{kind}": ("{stack}.{layer}.self.{qkv}.{kind}", THIRDS),
        "{stack}.{layer}.heads.{head}": "{stack}.{layer}.joined",
    },
    {
        "prefix": {"model.": "", "": ""},
        "side": {"src": "source", "tgt": "target"},
        "attention": {"att": "self", "src_att": "cross"},
    },
)


@dataclass(frozen=True)
class Transposed:
    def __call__(self, tensor: Tensor) -> Sequence[Tensor]:
        return (tensor.T,)

    def original_shape(self, shape: Shape) -> Shape:
        return shape[::-1]


def targets_of(key: str) -> tuple[str, ...] | None:
    found = TABLE.map_keys([key])
    if not found:
        return None
    rule, values = found[key]
    return tuple(target.format(**values) for target in rule.targets)


@pytest.mark.parametrize(
    ("key", "targets"),
    [
        ("src_emb", ("source_embedding.weight",)),
        ("encoder.12.src_att.k.bias", ("encoder.12.cross.k.bias",)),
        ("model.decoder.0.att.q.weight", ("decoder.0.self.q.weight",)),
        (
            "decoder.3.packed_bias",
            ("decoder.3.self.q.bias", "decoder.3.self.k.bias", "decoder.3.self.v.bias"),
        ),
        ("encoder.0.heads.7", ("encoder.0.joined",)),
        ("model.src_emb", None),
        ("encoder.0.self.k.bias", None),
        ("encoder.0.att.o.bias", None),
        ("encoder.1234567.att.k.bias", None),
        ("encoder.x.att.k.bias", None),
        ("xencoder.0.att.k.bias", None),
        ("encoder.0.att.k.biasx", None),
        ("encoder.٣.att.k.bias", None),  # a digit that is none of ASCII's
    ],
)
def test_key_is_mapped_by_its_words_and_numbers(key: str, targets: tuple[str, ...] | None) -> None:
    assert targets_of(key) == targets


@pytest.mark.parametrize(
    ("target", "shape", "key", "original"),
    [
        ("target_embedding.weight", (9, 4), "tgt_emb", (9, 4)),
        ("encoder.12.cross.k.bias", (4,), "model.encoder.12.src_att.k.bias", (4,)),
        ("encoder.2.joined", (6, 4), "encoder.2.heads.*", (2, 4)),
        ("encoder.2.joined", (7, 4), "encoder.2.heads.*", (7, 4)),
        ("nothing.of.it", (6, 4), "nothing.of.it", (6, 4)),
    ],
)
def test_origin_of_a_weight_is_the_first_key_that_becomes_it(
    target: str, shape: Shape, key: str, original: Shape
) -> None:
    assert TABLE.origin_of(target, shape, num_heads=3) == (key, original)


@pytest.mark.parametrize(
    ("convert", "original"),
    [(UNCHANGED, (4, 5)), (Split(2), (8, 5)), (THIRDS, (12, 5)), (Transposed(), (5, 4))],
)
def test_conversion_knows_the_shape_that_it_comes_from(convert: Convert, original: Shape) -> None:
    table = KeyTable({"{stack}.x": ("{stack}.y.{qkv}", convert)})
    assert table.origin_of("encoder.y.q", (4, 5)) == ("encoder.x", original)
    assert {tuple(it.shape) for it in convert(torch.zeros(original))} == {(4, 5)}


def test_scalar_has_a_shape_before_any_conversion() -> None:
    for convert in (UNCHANGED, THIRDS, POSITION_TABLE):
        assert convert.original_shape(()) == ()
    assert len(THIRDS(torch.tensor(1.0))) == 0


def test_packed_tensor_is_split_and_one_for_both_sides_is_shared() -> None:
    table = KeyTable(
        {
            "qkv": ("{qkv}_proj", THIRDS),
            "pos": ("{side}.table", POSITION_TABLE),
        }
    )
    packed = torch.arange(12.0).reshape(6, 2)
    found = convert_weights(table, {"qkv": packed, "pos": torch.ones(1, 3, 1, 2), "other": packed})
    assert found.key_report == {
        "qkv": ("q_proj", "k_proj", "v_proj"),
        "pos": ("source.table", "target.table"),
    }
    assert torch.equal(found.weights["k_proj"], packed[2:4])
    assert found.weights["source.table"].shape == (3, 2)
    assert (found.num_heads, found.problems) == (None, [])


def test_heads_are_joined_in_their_order() -> None:
    heads = {f"encoder.0.heads.{head}": torch.full((1, 2), float(head)) for head in (10, 2, 0)}
    heads |= {f"encoder.0.heads.{i}": torch.full((1, 2), float(i)) for i in (1, *range(3, 10))}
    found = convert_weights(TABLE, heads)
    assert found.num_heads == 11
    assert found.weights["encoder.0.joined"][:, 0].tolist() == [float(i) for i in range(11)]


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        (
            {"encoder.0.packed_bias": torch.zeros(4)},
            "encoder.0.packed_bias has shape (4,), which does not split into 3",
        ),
        (
            {"encoder.0.heads.0": torch.zeros(2, 2), "encoder.0.heads.2": torch.zeros(2, 2)},
            "encoder.0.heads.1 is missing",
        ),
        (
            {"encoder.0.heads.0": torch.zeros(2, 2), "encoder.0.heads.1": torch.zeros(2, 3)},
            "the heads of encoder.0.joined differ in shape",
        ),
        (
            {"encoder.0.heads.0": torch.tensor(1.0), "encoder.0.heads.1": torch.tensor(1.0)},
            "the heads of encoder.0.joined are single values, not matrices",
        ),
    ],
)
def test_tensor_that_cannot_be_converted_is_named(state: dict[str, Tensor], problem: str) -> None:
    assert convert_weights(TABLE, state).problems == [problem]


def test_thousands_of_names_are_mapped_both_ways_at_once() -> None:
    many = KeyTable(
        {f"{{stack}}.x{i}.{{layer}}.{chr(97 + i)}": f"t{i}.{{layer}}" for i in range(26)}
    )
    keys = [f"encoder.x{i}.{layer}.{chr(97 + i)}" for i in range(26) for layer in range(400)]
    start = time.process_time()
    assert len(many.map_keys(keys)) == len(keys)
    for i in range(26):
        for layer in range(400):
            assert many.origin_of(f"t{i}.{layer}", (1,))[0].endswith(f"x{i}.{layer}.{chr(97 + i)}")
    assert time.process_time() - start < 10  # minutes, if every name were tried for every key
