"""Bundles of modules that have a forward alone, compared with eager searches over it.

Axes: B batch, S source, T target.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from torch import Tensor, nn

from tests.conftest import Once, compare_few_shapes
from tests.export.incremental.own_case import (
    Case,
    batch_axis,
    draw_inputs,
    draw_target,
    in_its_order,
    logits,
)
from tests.export.incremental.own_modules import BOS, CASES, EOS, PAD
from tests.support import eager_search
from tests.support.combinations import few_of
from tests.support.eager_search import Closest, Found, Rules
from tfexport.errors import BundleError, ConfigError, ExportError
from tfexport.export import Input, verify
from tfexport.export import export as export_module
from tfexport.runtime import Translator
from tfexport.runtime.results import Hypothesis

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*nested.tensor:UserWarning"),
    pytest.mark.slow,
]
export = partial(export_module, recognise=False)  # of the steps that are found
LONGEST = 12
# Of one length each: rows of a module that does not mask its padding are decoded by themselves.
LENGTHS = ({"source_length": 5, "frames": 12, "region_count": 4},
           {"source_length": 9, "frames": 30, "region_count": 7})  # fmt: skip
SHORT = ("stock", "gru")
Exported = Callable[[Case], Path]


class ByForward(nn.Module):
    """A case for the searches, which call its forward over the whole prefix for every token."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case, self.model = case, case.make()

    def encode(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return inputs

    def decode(self, tokens: Tensor, *inputs: Tensor) -> Tensor:
        given = [
            tensor.movedim(0, batch_axis(each))
            for tensor, each in zip(inputs, self.case.inputs, strict=True)
        ]
        return logits(self.case, self.model, given, in_its_order(self.case, tokens))


@pytest.fixture(scope="module")
def exported(once: Once) -> Exported:
    """The bundle of a case, whose searches are compared here. Do not change it."""

    def get(case: Case) -> Path:
        def make(path: Path) -> None:
            with pytest.MonkeyPatch.context() as patch:
                if case.name in SHORT:  # other shapes are those of the searches
                    compare_few_shapes(patch)
                export(case.make(), path, **arguments(case), pad_id=PAD, bos_id=BOS, eos_id=EOS,
                       max_length=LONGEST, verify="quick")  # fmt: skip

        return once(f"forwards/{case.name}.bundle", make)

    return get


def arguments(case: Case) -> dict[str, Any]:
    return {"inputs": case.inputs, "target": case.target, "forward": case.forward}


def rows_of(case: Case) -> list[dict[str, Any]]:
    rows = []
    for seed, lengths in enumerate(LENGTHS):
        drawn = draw_inputs(case, 3, lengths, seed)
        batch_first = [
            tensor.movedim(batch_axis(each), 0)
            for tensor, each in zip(drawn, case.inputs, strict=True)
        ]
        for i in range(3):
            rows.append(
                {
                    each.name: tensor[i].numpy()
                    for each, tensor in zip(case.inputs, batch_first, strict=True)
                }
            )
    return rows


def said(found: Found | Hypothesis) -> tuple[Any, ...]:
    return list(found.tokens), found.finished, pytest.approx(found.score, abs=1e-4)


def named(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=() if case.name in SHORT else pytest.mark.exhaustive)
        for case in CASES
    ],
)
def test_searches_are_those_over_the_forward(case: Case, exported: Exported) -> None:
    rows, oracle = rows_of(case), ByForward(case)
    with Translator(exported(case)) as translator:
        closest = Closest()
        rules = Rules(LONGEST, bos=BOS, eos=EOS)
        wanted = [eager_search.greedy(oracle, row, rules, closest) for row in rows]
        assert closest.gap > 1e-4, "a near tie; draw other weights"
        made = translator.generate_from(rows, max_length=LONGEST)
        assert [said(each.hypotheses[0]) for each in made] == [said(each) for each in wanted]
        closest = Closest()
        rules = Rules(LONGEST, beam_size=3, num_hypotheses=2, bos=BOS, eos=EOS)
        beams = [eager_search.beam(oracle, row, rules, closest) for row in rows]
        assert closest.gap > 1e-6, "a near tie; draw other weights"
        made = translator.generate_from(rows, max_length=LONGEST, beam_size=3, num_hypotheses=2)
        assert [[said(h) for h in each.hypotheses] for each in made] == [
            [said(found) for found in each] for each in beams
        ]


def test_a_mask_in_the_forward_lets_rows_be_padded(exported: Exported) -> None:
    masked, unmasked = (Translator(exported(named(name))) for name in SHORT)
    with masked, unmasked:
        for translator, padded in ((masked, True), (unmasked, named("gru").pads_source)):
            io = translator.engine.manifest.module_io
            assert io is not None
            assert io.padded == padded
            assert not io.recomputes


@pytest.mark.onnxruntime
def test_graphs_are_those_of_the_layouts(exported: Exported) -> None:
    folder = exported(named("stock"))  # two layers, each with attention to target and source
    decoder = operators(folder / "decoder.onnx")
    assert decoder.count("MultiHeadAttention") == 4
    assert not {"Softmax", "Concat"} & set(decoder)
    assert decoder.count("Transpose") == 1  # of the last layer's weight, when it is loaded
    assert operators(folder / "encoder.onnx").count("MultiHeadAttention") == 1
    for name in SHORT:  # the best token without all logits
        assert "MatMulInteger" in operators(exported(named(name)) / "generate.onnx")


@pytest.mark.onnxruntime
@pytest.mark.exhaustive
def test_portable_graphs_have_standard_operators_only(tmp_path: Path) -> None:
    case = named("stock")
    export(case.make(), tmp_path / "a.bundle", portable=True, **arguments(case),
           pad_id=PAD, bos_id=BOS, eos_id=EOS, max_length=LONGEST)  # fmt: skip
    for path in (tmp_path / "a.bundle").glob("*.onnx"):
        assert {node.domain for node in ir.load(path).graph.all_nodes()} == {""}
    assert verify(tmp_path / "a.bundle", case.make(), **arguments(case)).passed


def operators(path: Path) -> list[str]:
    return [node.op_type for node in ir.load(path).graph.all_nodes()]


@pytest.mark.usefixtures("few_shapes")
def test_verify_finds_the_steps_again(exported: Exported) -> None:
    case = named("gru")
    example = (*draw_inputs(case, 3, LENGTHS[0], 7), draw_target(case, 3, 4, 7))
    report = verify(exported(case), case.make(), example=example, level="quick")
    assert report.passed
    with torch.no_grad():
        other = case.make()
        next(iter(other.parameters())).mul_(1.01)
    assert not verify(exported(case), other, **arguments(case), level="quick").passed


@pytest.mark.exhaustive
def test_verify_refuses_another_module(exported: Exported) -> None:
    case, stock = named("gru"), named("stock")
    with pytest.raises(BundleError, match="not exported from"):
        verify(exported(case), stock.make(), **arguments(stock))


@pytest.mark.usefixtures("few_shapes")  # others are compared here
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("name", few_of(("stock", "tutorial", "average", "two_inputs"), "stock"))
def test_torchscript_has_the_steps(name: str, tmp_path: Path) -> None:
    case, made = named(name), tmp_path / "a.ts"
    result = export(case.make(), made, **arguments(case), pad_id=PAD, bos_id=BOS, eos_id=EOS,
                    max_length=LONGEST, verify="quick")  # fmt: skip
    assert result.report is not None
    assert result.report.passed
    loaded, oracle = torch.jit.load(made), ByForward(case)
    sizes = ((4, {"source_length": 3, "frames": 13, "region_count": 6}), (1, LENGTHS[1]))
    for batch, lengths in sizes:  # others than those of the comparison
        inputs = [
            tensor.movedim(batch_axis(each), 0)
            for tensor, each in zip(draw_inputs(case, batch, lengths, 3), case.inputs, strict=True)
        ]
        tokens = in_its_order(case, draw_target(case, batch, 6, 4))
        memory = loaded.encode(*inputs)
        state, found = loaded.start(*memory), []
        for position in range(6):
            token = tokens[:, position : position + 1]
            of_token, state = loaded.step(token, torch.tensor(position), state, memory)
            found.append(of_token)
        assert torch.allclose(torch.stack(found, 1), oracle.decode(tokens, *inputs), atol=1e-4)


def test_torchscript_of_recurrent_layers_is_refused(tmp_path: Path) -> None:
    case = named("gru")
    with pytest.raises(ExportError, match=r"recurrent layers .* no form in TorchScript"):
        export(case.make(), tmp_path / "a.ts", **arguments(case), pad_id=PAD, bos_id=BOS,
               eos_id=EOS, max_length=LONGEST)  # fmt: skip
    assert not list(tmp_path.iterdir())


def test_wrong_arguments_are_all_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        export(named("gru").make(), tmp_path / "a.bundle", inputs=named("gru").inputs,
               target=Input("target", "float32", ("batch", 7)), forward=np.array, pad_id=PAD,
               bos_id=BOS, eos_id=EOS, max_length=LONGEST)  # fmt: skip
    assert "float32" in str(caught.value)
    assert "7" in str(caught.value)
