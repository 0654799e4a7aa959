"""Patches of torch's ONNX exporter that skip steps these graphs do not need.

``torch.onnx.export`` traces every program three times: once to capture it, and twice more to
decompose operators that ONNX lacks. The modules here use operators that ONNX has, and a few whose
decomposition is one other operator; replacing these saves the two traces. For type promotion the
exporter runs every operator again; here only those with inputs of different types are run. It lists
all of torch's operators for every graph; here the list is kept. And it makes many objects with
cyclic references, which Python's garbage collector would scan repeatedly; here it is paused.
Together these steps took two thirds of an export's time.

The patched functions are private to torch. A program with any other operator is decomposed by torch
itself, and nothing is patched in a version of torch that lacks one of the functions.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from tfexport.gc_pause import no_collecting

_ATEN = torch.ops.aten
# Operator to the one that torch decomposes it into.
_RENAMED = {
    _ATEN.__or__.Tensor: _ATEN.bitwise_or.Tensor,
    _ATEN.__and__.Tensor: _ATEN.bitwise_and.Tensor,
}
# These give their first input: exported modules are in eval mode, and have no gradients.
_PASSED_THROUGH = {_ATEN.detach_.default, _ATEN.detach.default, _ATEN.dropout.default}
# torch's exporter removes them itself.
_ASSERTIONS = {
    _ATEN.sym_constrain_range_for_size.default,
    _ATEN._assert_async.default,
    _ATEN._assert_async.msg,
    _ATEN._assert_scalar.default,
    _ATEN._assert_tensor_metadata.default,
}


_REGISTRIES: dict[int, Any] = {}  # by opset


@contextlib.contextmanager
def shortcuts() -> Iterator[list[ExportedProgram]]:
    """Patch torch's exporter inside the block; gives the programs as it translates them."""
    programs: list[ExportedProgram] = []
    with no_collecting(), contextlib.ExitStack() as stack:
        for owner, name, value in _replacements(programs):
            stack.enter_context(_replaced(owner, name, value))
        yield programs


def _replacements(programs: list[ExportedProgram]) -> list[tuple[Any, str, Any]]:
    """Torch's functions to replace: (owner, attribute, new value); empty if torch lacks one."""
    try:
        from torch.onnx._internal.exporter import _fx_passes, _registration
        from torch.onnx._internal.fx.passes import type_promotion

        decompose: Any = _fx_passes.decompose_with_registry
        list_operators: Any = _registration.ONNXRegistry.from_torchlib
        interpreter: Any = type_promotion._TypePromotionInterpreter
        run_again: Any = interpreter.run_node
        promote: Any = interpreter._maybe_promote_node
        find_rule: Any = type_promotion.get_type_promotion_rule
    except (ImportError, AttributeError):
        return []

    def decompose_once(program: ExportedProgram, registry: Any) -> Any:
        known = decompose_by_hand(program, registry)
        programs.append(program if known else decompose(program, registry))
        return programs[-1]

    def list_once(opset_version: int) -> Any:
        if opset_version not in _REGISTRIES:
            _REGISTRIES[opset_version] = list_operators(opset_version=opset_version)
        return _REGISTRIES[opset_version]

    def promote_alone(self: Any, node: Node) -> Any:
        if node.op != "call_function" or not isinstance(node.meta.get("val"), torch.Tensor):
            return run_again(self, node)
        with self._set_current_node(node):
            if (rule := find_rule(node, self.type_promotion_table)) is not None:
                promote(self, node, rule)  # runs a node that it changes, and records its new value
        return node.meta["val"]

    return [
        (_fx_passes, "decompose_with_registry", decompose_once),
        (interpreter, "run_node", promote_alone),
        (_registration.ONNXRegistry, "from_torchlib", staticmethod(list_once)),
    ]


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    own = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, own)


def decompose_by_hand(program: ExportedProgram, registry: Any) -> bool:
    """Decompose a program if all of its operators are known here; else leave it unchanged.

    Args:
        program: as captured by torch.export.
        registry: torch's registry of operators that have an ONNX form.

    Returns:
        Whether every operator of the program can be exported now.
    """
    module = program.graph_module
    calls = [node for node in module.graph.nodes if node.op == "call_function"]
    known = {forms[0].fx_target for forms in registry.functions.values()} | _ASSERTIONS
    if any(True for _ in module.children()) or not all(_is_known(node, known) for node in calls):
        return False
    for node in calls:
        if node.target in _RENAMED:
            node.target = _RENAMED[node.target]
        elif node.target in _PASSED_THROUGH or _keeps_type(node):
            node.replace_all_uses_with(node.args[0])
            # The signature lists outputs by name.
            program.graph_signature.replace_all_uses(node.name, node.args[0].name)
            module.graph.erase_node(node)
        elif node.target is _ATEN.to.dtype:
            node.target = _ATEN._to_copy.default
            node.kwargs = {"dtype": node.args[1]}
            node.args = node.args[:1]
    module.recompile()
    return True


def _is_known(node: Node, known: set[Any]) -> bool:
    target = node.target
    if target in _RENAMED or target in _PASSED_THROUGH:
        return True
    if target is _ATEN.to.dtype:
        return len(node.args) == 2 and not node.kwargs
    # In-place operators are left to torch.
    schema = getattr(target, "_schema", None)
    return target in known and not (schema is not None and schema.is_mutable)


def _keeps_type(node: Node) -> bool:
    if node.target is not _ATEN.to.dtype:
        return False
    before = node.args[0].meta.get("val") if isinstance(node.args[0], Node) else None
    return before is not None and before.dtype == node.args[1]
