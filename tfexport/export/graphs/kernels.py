"""Checks that onnxruntime has a kernel for every operator of a custom module's graph.

Torch's exporter writes operators for types without a kernel in onnxruntime, such as ``Trilu`` of
bytes. Integers and booleans are then computed as wider integers, and half precision as float32.
Other operators without a kernel raise an error that names their line in the user's code.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import onnx_ir as ir
import onnxruntime as ort
import torch
from torch import Tensor, nn

from tfexport.errors import ExportError
from tfexport.export.ir_tools.nodes import BEST_TOKEN, PLACEHOLDERS, is_operator
from tfexport.export.named_code import is_named
from tfexport.graph_io import GraphSpec

_TRACE = "pkg.torch.onnx.stack_trace"
_FRAME = re.compile(r'File "(.+)", line (\d+), in (\S+)\n?((?:(?!\s*File ").*)?)')
_LARGE = 1024  # numbers of a weight that is fed, not copied into the file that is tried
_MOST_NAMED = 4  # operators that one message names
# Types with a wider type, with which the same operator computes the same.
_WIDER = {
    ir.DataType.BOOL: (ir.DataType.INT64, ir.DataType.INT32),
    ir.DataType.UINT8: (ir.DataType.INT64, ir.DataType.INT32),
    ir.DataType.INT8: (ir.DataType.INT64, ir.DataType.INT32),
    ir.DataType.UINT16: (ir.DataType.INT64, ir.DataType.INT32),
    ir.DataType.INT16: (ir.DataType.INT64, ir.DataType.INT32),
    ir.DataType.UINT32: (ir.DataType.INT64,),
    ir.DataType.INT32: (ir.DataType.INT64,),
    ir.DataType.FLOAT16: (ir.DataType.FLOAT,),
    ir.DataType.BFLOAT16: (ir.DataType.FLOAT,),
}


@contextlib.contextmanager
def runnable(model: ir.Model) -> Iterator[None]:
    """Within the block, the placeholder of the best token is the argmax of its states."""
    versions, places = dict(model.opset_imports), []
    for node in model.graph:
        if is_operator(node, BEST_TOKEN):
            places.append((node, node.domain, node.op_type, dict(node.attributes)))
            node.domain, node.op_type = "", "ArgMax"
            node.attributes["axis"] = ir.AttrInt64("axis", -1)
            node.attributes["keepdims"] = ir.AttrInt64("keepdims", 0)
    model.opset_imports.pop(PLACEHOLDERS, None)
    try:
        yield
    finally:
        model.opset_imports.update(versions)
        for node, domain, operator, attributes in places:
            node.domain, node.op_type = domain, operator
            node.attributes.clear()
            node.attributes.update(attributes)


def fit_kernels(model: ir.Model) -> None:
    """Give every operator types for which onnxruntime has a kernel.

    Args:
        model: as torch exported it, with the lines of its code; changed in place.

    Raises:
        ExportError: operators that onnxruntime has for no type that holds their values.
    """
    failure = _load_failure(model)
    if failure is None:
        return
    missing: dict[str, str] = {}
    for node in list(model.graph.all_nodes()):
        if not _loads(model, node) and not _widen(model, node):
            types = ", ".join(dict.fromkeys(_type(value) for value in node.inputs if value))
            missing.setdefault(f"{node.op_type} of {types}", source_of(node))
    if missing:
        named = [f"{what}{at}" for what, at in missing.items()][:_MOST_NAMED]
        raise ExportError(f"onnxruntime {ort.__version__} has no {', no '.join(named)}; {_ADVICE}")
    failure = _load_failure(model)
    if failure is not None:
        raise ExportError(f"onnxruntime {ort.__version__} cannot load the graph: {failure}")


_ADVICE = "convert to float32, int64 or bool before, or write it with other operators"


def run_once(
    model: ir.Model,
    module: nn.Module,
    spec: GraphSpec,
    examples: Sequence[tuple[Tensor, ...]],
) -> None:
    """Run a graph on the examples that the module itself takes.

    Args:
        model: a model that ``fit_kernels`` has processed.
        module: the module that it was exported from.
        spec: the names of inputs.
        examples: tensors of each run.

    Raises:
        ExportError: an operator fails at run time; the message has the line that it comes from.
    """
    names = [tensor.name for tensor in spec.inputs]
    with _session(model) as (session, weights):
        for tensors in examples:
            feeds = {name: tensor.numpy() for name, tensor in zip(names, tensors, strict=True)}
            # Inputs that nothing reads are no inputs of the graph.
            known = {value.name for value in session.get_inputs()}
            feeds = {name: array for name, array in feeds.items() if name in known}
            try:
                session.run(None, {**feeds, **weights})
            except Exception as error:  # onnxruntime's exceptions share no base but Exception
                if _runs(module, tensors):
                    raise ExportError(_run_failure(model, str(error))) from error


def _runs(module: nn.Module, tensors: tuple[Tensor, ...]) -> bool:
    """Whether the module itself accepts an example, whose values are arbitrary."""
    try:
        with torch.no_grad():
            module(*(tensor.clone() for tensor in tensors))
    except Exception:
        return False
    return True


def _run_failure(model: ir.Model, text: str) -> str:
    reason = text.rpartition("Status Message: ")[2].splitlines()[0].strip().rstrip(".")
    named = [node for node in model.graph.all_nodes() if f"'{node.name}'" in text]
    version = f"onnxruntime {ort.__version__}"
    if not named:
        return f"the graph fails in {version}: {reason}"
    node = named[-1]
    return f"{node.op_type} fails in {version}{source_of(node)}: {reason}"


def source_of(node: ir.Node) -> str:
    """The line of code that a node comes from, or the nearest before it: `` at a.py:1 in f``."""
    seen, pending = set[int](), [node]
    while pending:
        node = pending.pop(0)
        if id(node) in seen:
            continue
        seen.add(id(node))
        if line := source_line(node.metadata_props.get(_TRACE, "")):
            return f" at {line}"
        producers = [value.producer() for value in node.inputs if value is not None]
        pending += [producer for producer in producers if producer is not None]
    return ""


def source_line(trace: str) -> str:
    """The innermost line of a trace that messages name, as ``a.py:1 in f: code``; "" if none.

    Args:
        trace: lines of torch's, ``File "a.py", line 1, in f`` and the code below it.
    """
    frames = [frame for frame in _FRAME.findall(trace) if is_named(frame[0])]
    if not frames:
        return ""
    file, line, function, code = frames[-1]
    code = code.strip()
    return f"{Path(file).name}:{line} in {function}{f': {code}' if code else ''}"


@contextlib.contextmanager
def _weights_outside(model: ir.Model) -> Iterator[dict[str, Any]]:
    """Within the block, turn large weights into inputs; yields the weights by name."""
    graph = model.graph
    large = {
        name: value
        for name, value in graph.initializers.items()
        if value.const_value is not None and value.const_value.size > _LARGE
        and value not in graph.outputs
    }  # fmt: skip
    count = len(graph.inputs)
    for name, value in large.items():
        graph.initializers.pop(name)
        graph.inputs.append(value)
    try:
        yield {
            name: weight.numpy() for name, value in large.items() if (weight := value.const_value)
        }
    finally:
        while len(graph.inputs) > count:
            graph.inputs.pop()  # `del` would leave the values marked as inputs
        for value in large.values():
            graph.register_initializer(value)


@contextlib.contextmanager
def _session(model: ir.Model) -> Iterator[tuple[ort.InferenceSession, Mapping[str, Any]]]:
    """A session without onnxruntime's optimisations, and the weights that are its inputs."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    with _weights_outside(model) as weights:
        data = ir.serde.serialize_model(model).SerializeToString()
    yield ort.InferenceSession(data, options, providers=["CPUExecutionProvider"]), weights


def _load_failure(model: ir.Model) -> str | None:
    try:
        with _session(model):
            return None
    except Exception as error:  # as in ``run_once``
        return str(error).splitlines()[0]


@dataclass(frozen=True)
class _Wider:
    """A node whose values of one type are replaced by a wider type.

    Attributes:
        kind: the replaced type.
        wide: the wider type.
        first: whether the first input of that type is cast; false if it is a condition.
        outputs: whether the outputs are cast back; false for comparisons.
    """

    kind: ir.DataType
    wide: ir.DataType
    first: bool
    outputs: bool

    def inputs(self, node: ir.Node) -> list[int]:
        """The inputs of a node that are cast."""
        found = [i for i, value in enumerate(node.inputs) if value and value.dtype == self.kind]
        return found if self.first else found[1:]

    def results(self, node: ir.Node) -> list[int]:
        """The outputs of a node that are cast back."""
        found = [i for i, value in enumerate(node.outputs) if value.dtype == self.kind]
        return found if self.outputs else []


def _loads(model: ir.Model, node: ir.Node, wider: _Wider | None = None) -> bool:
    """Whether onnxruntime has a kernel for one node; ``wider`` replaces some of its types."""
    kinds = {attribute.type for attribute in node.attributes.values()}
    if kinds & {ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS}:
        return True  # its own nodes are looked at
    values = [*(value for value in node.inputs if value is not None), *node.outputs]
    if any(not isinstance(value.type, ir.TensorType) for value in values):
        return True

    def alone(values: Sequence[ir.Value | None], wide: Sequence[int]) -> list[ir.Value | None]:
        return [
            value and ir.val(f"value_{i}", wider.wide if wider and i in wide else value.dtype)
            for i, value in enumerate(values)
        ]

    inputs = alone(node.inputs, wider.inputs(node) if wider else ())
    outputs = alone(node.outputs, wider.results(node) if wider else ())
    made = ir.Node(
        node.domain, node.op_type, inputs, list(node.attributes.values()),
        outputs=[value for value in outputs if value is not None], version=node.version,
    )  # fmt: skip
    for i, value in enumerate(made.outputs):
        value.name = f"output_{i}"
    graph = ir.Graph(
        [value for value in inputs if value is not None], list(made.outputs), nodes=[made],
        opset_imports=model.opset_imports, name="one_operator",
    )  # fmt: skip
    functions = list(model.functions.values())
    failure = _load_failure(ir.Model(graph, ir_version=model.ir_version, functions=functions))
    return failure is None


def _widen(model: ir.Model, node: ir.Node) -> bool:
    """Compute a node by a wider type that has a kernel; whether there is one."""
    narrow = [value.dtype for value in node.inputs if value and value.dtype in _WIDER]
    for kind in dict.fromkeys(narrow):
        for wide, first, outputs in product(_WIDER[kind], (True, False), (True, False)):
            wider = _Wider(kind, wide, first, outputs)
            if wider.inputs(node) and _loads(model, node, wider):
                _cast(node, wider)
                return True
    return False


def _cast(node: ir.Node, wider: _Wider) -> None:
    """Cast the inputs and outputs of one type to another and back."""
    graph = node.graph
    assert graph is not None
    inputs, results = wider.inputs(node), wider.results(node)
    for number in inputs:
        value = node.inputs[number]
        assert value is not None
        cast = _cast_node(value, wider.wide, f"{node.name}_wide_{number}", node)
        graph.insert_before(node, cast)
        node.replace_input_with(number, cast.outputs[0])
    for number in results:
        value, name = node.outputs[number], node.outputs[number].name
        back = _cast_node(value, wider.kind, f"{name}_narrow", node)
        ir.convenience.replace_all_uses_with(value, back.outputs[0], replace_graph_outputs=True)
        back.replace_input_with(0, value)
        value.name, value.type = f"{name}_wide", ir.TensorType(wider.wide)
        back.outputs[0].name = name
        graph.insert_after(node, back)


def _cast_node(value: ir.Value, kind: ir.DataType, name: str, source: ir.Node) -> ir.Node:
    made = ir.node("Cast", [value], {"to": kind}, name=name, metadata_props=source.metadata_props)
    made.outputs[0].name = f"{name}_value"
    made.outputs[0].type, made.outputs[0].shape = ir.TensorType(kind), value.shape
    return made


def _type(value: ir.Value) -> str:
    return "unknown" if value.dtype is None else value.dtype.name.lower()
