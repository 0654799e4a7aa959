"""Foreign graphs in a bundle with right checksums."""

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from tests.fuzz.bundles import copy_bundle, use, warm_up
from tests.fuzz.mutate import allowed, mutate_bytes
from tfexport.bundle import read_manifest, write_manifest

NAMES = (
    "input_ids", "attention_mask", "logits", "sequences", "scores", "other", "max_length", "",
    "present.0.decoder.key", "past_key_values.0.decoder.key", "cross_attentions",
)  # fmt: skip
OPERATORS = (
    "Add",
    "Mul",
    "Sub",
    "Identity",
    "Neg",
    "MatMul",
    "Concat",
    "Transpose",
    "Gather",
    "Nope",
)


def prepare(bundle: Path) -> None:
    """Open the bundle once."""
    warm_up(bundle)


def run(rng: Random, scratch: Path, bundle: Path) -> None:
    """Change a graph, and decode with every path that uses it."""
    folder = copy_bundle(rng, bundle, scratch)
    graphs = sorted(folder.glob("*.onnx"))
    path = rng.choice(graphs)
    kind = rng.randrange(10)
    if kind == 0:
        path.write_bytes(mutate_bytes(rng, path.read_bytes()))
    elif kind == 1:
        path.write_bytes(rng.choice(graphs).read_bytes())  # of another role
    elif kind == 2:
        weights = folder / "weights.bin"
        weights.write_bytes(mutate_bytes(rng, weights.read_bytes()))
    else:
        model = onnx.load(path, load_external_data=False)
        for _ in range(rng.choice([1, 1, 2, 3])):
            rng.choice(_CHANGES)(rng, model)
        path.write_bytes(model.SerializeToString())
    write_manifest(folder, read_manifest(folder))
    with allowed():
        use(rng, folder)


def _rename(rng: Random, model: Any) -> None:
    value = rng.choice([*model.graph.input, *model.graph.output])
    name = rng.choice(NAMES)
    old, value.name = value.name, name
    if rng.random() < 0.7:  # and where it is used, so that the graph still loads
        for node in model.graph.node:
            for names in (node.input, node.output):
                names[:] = [name if used == old else used for used in names]


def _retype(rng: Random, model: Any) -> None:
    value = rng.choice([*model.graph.input, *model.graph.output])
    value.type.tensor_type.elem_type = rng.choice([1, 2, 6, 7, 8, 9, 10, 11])


def _reshape(rng: Random, model: Any) -> None:
    value = rng.choice([*model.graph.input, *model.graph.output])
    shape = value.type.tensor_type.shape
    kind = rng.randrange(4)
    if kind == 0 and shape.dim:
        rng.choice(shape.dim).dim_value = rng.choice([0, 1, 2, 5, 2**31, -1])
    elif kind == 1 and shape.dim:
        rng.choice(shape.dim).dim_param = rng.choice(["batch", "x", ""])
    elif kind == 2:
        shape.dim.add().dim_param = "more"
    else:
        value.type.tensor_type.ClearField("shape")


def _drop(rng: Random, model: Any) -> None:
    part = rng.choice([model.graph.input, model.graph.output, model.graph.node])
    if len(part):
        del part[rng.randrange(len(part))]


def _swap(rng: Random, model: Any) -> None:
    part = rng.choice([model.graph.input, model.graph.output])
    values = list(part)
    rng.shuffle(values)
    del part[:]
    part.extend(values)


def _add_input(rng: Random, model: Any) -> None:
    value = model.graph.input.add()
    value.CopyFrom(model.graph.input[0])
    value.name = rng.choice(NAMES)


def _operator(rng: Random, model: Any) -> None:
    rng.choice(model.graph.node).op_type = rng.choice(OPERATORS)


def _attribute(rng: Random, model: Any) -> None:
    nodes = [node for node in model.graph.node if node.attribute]
    if nodes:
        attribute = rng.choice(rng.choice(nodes).attribute)
        attribute.i = rng.choice([-1, 0, 1, 2, 100, 2**40])
        attribute.f = rng.choice([0.0, float("nan"), 1e30])


def _rewire(rng: Random, model: Any) -> None:
    nodes = [node for node in model.graph.node if node.input]
    names = [name for node in nodes for name in node.input]
    node = rng.choice(nodes)
    node.input[rng.randrange(len(node.input))] = rng.choice(names)


def _values(rng: Random, model: Any) -> None:
    small = [t for t in model.graph.initializer if not t.external_data and t.raw_data]
    if small:
        tensor = rng.choice(small)
        array = numpy_helper.to_array(tensor).copy()
        with np.errstate(all="ignore"):
            array = array + array.dtype.type(1) if array.dtype != bool else ~array
        name = tensor.name
        tensor.CopyFrom(numpy_helper.from_array(array, name))


def _external(rng: Random, model: Any) -> None:
    tensors = [t for t in model.graph.initializer if t.external_data]
    if tensors:
        entry = rng.choice(rng.choice(tensors).external_data)
        entry.value = rng.choice(
            ["-1", "0", "1", "8", "9999999", "2" * 30, "x", "../x", "/etc/passwd"]
        )


def _version(rng: Random, model: Any) -> None:
    if rng.random() < 0.5:
        model.opset_import[0].version = rng.choice([0, 1, 7, 18, 21, 99, -1])
    else:
        model.ir_version = rng.choice([0, 3, 8, 10, 14, 99])


_CHANGES = (
    _rename, _retype, _reshape, _drop, _swap, _add_input, _operator, _attribute, _rewire, _values,
    _external, _version,
)  # fmt: skip
