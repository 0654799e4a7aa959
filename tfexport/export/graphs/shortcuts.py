"""Patches of torch's ONNX exporter that skip steps these graphs do not need.

``torch.onnx.export`` traces every program three times: once to capture it, and twice more to
decompose operators that ONNX lacks. The modules here use operators that ONNX has, and a few whose
decomposition is one other operator; replacing these saves the two traces. For type promotion the
exporter runs every operator again; here only those with inputs of different types are run. It lists
all of torch's operators for every graph; here the list is kept. It tries each of its rewriting
rules at every node; here only those that begin with the node's operator are tried. Lines of code
are kept for a user's module only. And it makes many objects with cyclic references, which Python's
garbage collector would scan repeatedly; here it is paused. Together these steps took two thirds of
an export's time.

The patched functions are private to torch; see ``torch_names``. A program with any other operator
is decomposed by torch itself; a version of torch that lacks a function does without its shortcut.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.fx import Node

from tfexport.export import torch_names
from tfexport.gc_pause import no_collecting

_ATEN = torch.ops.aten
# Operator to the one that torch decomposes it into.
_RENAMED = {
    _ATEN.__or__.Tensor: _ATEN.bitwise_or.Tensor,
    _ATEN.__and__.Tensor: _ATEN.bitwise_and.Tensor,
}
_CONVERSIONS = {_ATEN.to.dtype, _ATEN.to.device, _ATEN.to.dtype_layout, _ATEN.to.other}
_PERMUTATIONS = {_ATEN.movedim.int, _ATEN.numpy_T.default, _ATEN.mT.default}
# These give their first input: exported modules are in eval mode, and have no gradients.
_PASSED_THROUGH = {_ATEN.detach_.default, _ATEN.detach.default, _ATEN.dropout.default}
# These and operators on single elements give new memory.
_MAKERS = {
    _ATEN.clone.default, _ATEN.zeros_like.default, _ATEN.ones_like.default, _ATEN.full_like.default,
    _ATEN.new_zeros.default, _ATEN.new_ones.default, _ATEN.new_full.default, _ATEN.zeros.default,
    _ATEN.ones.default, _ATEN.full.default,
}  # fmt: skip
_REGISTRIES: dict[int, Any] = {}  # by opset
_Replacement = tuple[str, Any]  # a name of torch_names, and what takes its place


@contextlib.contextmanager
def shortcuts(lines: bool = False) -> Iterator[list[ExportedProgram]]:
    """Patch torch's exporter inside the block; gives the programs as it translates them.

    Args:
        lines: whether every operator gets the lines of code that made it, which messages name.
    """
    programs: list[ExportedProgram] = []
    with no_collecting(), contextlib.ExitStack() as stack:
        if not lines and hasattr(fx.config, "do_not_emit_stack_traces"):
            stack.enter_context(_replaced(fx.config, "do_not_emit_stack_traces", True))
        made = _decomposed_once(programs), _listed_once(), _promoted_alone(), _tried_where_it_fits()
        for shortcut in made:
            if shortcut is not None and (place := torch_names.owner_of(shortcut[0])) is not None:
                stack.enter_context(_replaced(*place, shortcut[1]))
        yield programs


def _decomposed_once(programs: list[ExportedProgram]) -> _Replacement | None:
    if (decompose := torch_names.find(torch_names.DECOMPOSE)) is None:
        return None

    def decompose_once(program: ExportedProgram, registry: Any) -> Any:
        known = decompose_by_hand(program, registry)
        programs.append(program if known else decompose(program, registry))
        return programs[-1]

    return torch_names.DECOMPOSE, decompose_once


def _listed_once() -> _Replacement | None:
    if (list_operators := torch_names.find(torch_names.LIST_OPERATORS)) is None:
        return None

    def list_once(opset_version: int) -> Any:
        if opset_version not in _REGISTRIES:
            _REGISTRIES[opset_version] = list_operators(opset_version=opset_version)
        return _REGISTRIES[opset_version]

    return torch_names.LIST_OPERATORS, staticmethod(list_once)


def _promoted_alone() -> _Replacement | None:
    names = (torch_names.RUN_NODE, torch_names.PROMOTE, torch_names.SET_NODE, torch_names.FIND_RULE)
    found = [torch_names.find(name) for name in names]
    if None in found:
        return None
    run_again, promote, set_node, find_rule = found

    def promote_alone(self: Any, node: Node) -> Any:
        table = getattr(self, "type_promotion_table", None)
        value = node.meta.get("val")
        if table is None or node.op != "call_function" or not isinstance(value, torch.Tensor):
            return run_again(self, node)
        with set_node(self, node):
            if (rule := find_rule(node, table)) is not None:
                promote(self, node, rule)  # runs a node that it changes, and records its new value
        return node.meta["val"]

    return torch_names.RUN_NODE, promote_alone


def _tried_where_it_fits() -> _Replacement | None:
    try_rule = torch_names.find(torch_names.TRY_RULE)
    matcher = torch_names.find(torch_names.RULE_MATCHER)
    if try_rule is None or matcher is None:
        return None
    operators: dict[Any, tuple[str, str] | None] = {}  # of each rule's last node; None: of any

    def operator_of(rule: Any) -> tuple[str, str] | None:
        try:
            pattern = rule._target_pattern
            if type(rule._matcher) is not matcher or not pattern.has_single_output_node:
                return None
            name = pattern.output_node.op_identifier()
        except AttributeError:  # another onnxscript keeps them in another way
            return None
        return None if name is None else (name[0], name[1])

    def try_where_it_fits(self: Any, model: Any, graph: Any, node: Any, **options: Any) -> Any:
        if self not in operators:
            operators[self] = operator_of(self)
        operator = operators[self]
        fits = operator is None or operator == (node.domain, node.op_type)
        # Who reads along is told of every rule.
        if fits or options.get("tracer") is not None:
            return try_rule(self, model, graph, node, **options)
        return None

    return torch_names.TRY_RULE, try_where_it_fits


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    own = vars(owner).get(name)  # None: it is of a parent
    setattr(owner, name, value)
    try:
        yield
    finally:
        if own is None:
            delattr(owner, name)
        else:
            setattr(owner, name, own)


def decompose_by_hand(program: ExportedProgram, registry: Any) -> bool:
    """Decompose a program if all of its operators are known here; else leave it unchanged.

    Args:
        program: a program that torch.export captured.
        registry: torch's registry of operators that have an ONNX form.

    Returns:
        Whether every operator of the program can be exported now.
    """
    module = program.graph_module
    calls = [node for node in module.graph.nodes if node.op == "call_function"]
    try:
        known = {forms[0].fx_target for forms in registry.functions.values()}
    except (AttributeError, LookupError):  # another torch keeps them in another way
        return False
    # torch's exporter removes assertions itself.
    known |= {found for name in torch_names.ASSERTIONS if (found := torch_names.find(name))}
    copy = torch_names.find(torch_names.COPY)
    if copy is None and any(node.target in _CONVERSIONS for node in calls):
        return False
    if any(True for _ in module.children()) or not all(_is_known(node, known) for node in calls):
        return False
    for node in calls:
        if (other := _other_form(node)) is not None:
            node.target, node.args = other
        elif node.target in _PASSED_THROUGH:
            replace_by_input(program, node)
        elif (dtype := type_converted_to(node)) is not None:
            if dtype == _type(node.args[0]):
                replace_by_input(program, node)
            else:
                node.target, node.args, node.kwargs = copy, node.args[:1], {"dtype": dtype}
    module.recompile()
    return True


def _is_known(node: Node, known: set[Any]) -> bool:
    target = node.target
    if target in _PASSED_THROUGH:
        return True
    if target in _CONVERSIONS:
        return type_converted_to(node) is not None
    if (other := _other_form(node)) is not None:
        return other[0] in known
    return target in known and not _is_in_place(target)  # operators in place are left to torch


def _other_form(node: Node) -> tuple[Any, tuple[Any, ...]] | None:
    """The operator that torch decomposes one into, and its arguments; None if it is not known."""
    if node.target in _RENAMED:
        return _RENAMED[node.target], node.args
    if (order := order_of_axes(node)) is not None:
        return _ATEN.permute.default, (node.args[0], order)
    given: Sequence[Any] = node.args
    if node.kwargs or len(given) < 2 or not isinstance(given[0], Node):
        return None
    values, *others = given
    if node.target is _ATEN.rsub.Scalar and len(others) == 1 and _type(values) == _type(node):
        return _ATEN.sub.Tensor, (*others, values)
    if _is_in_place(node.target) and _has_own_memory(values, node):
        name, _, overload = str(node.target).removeprefix("aten.").partition(".")
        functional = getattr(getattr(_ATEN, name.removesuffix("_"), None), overload, None)
        tensors = {_type(each) for each in others} - {None, torch.bool, _type(values)}
        return None if functional is None or tensors else (functional, node.args)
    return None


def order_of_axes(node: Node) -> list[int] | None:
    """The order that a node gives the axes of its input, by an operator that is a permutation."""
    if node.kwargs or node.target not in _PERMUTATIONS:
        return None
    given: Any = node.args
    values, *moved = given
    axes = list(range(values.meta["val"].dim()))
    if node.target is _ATEN.numpy_T.default:
        return axes[::-1]
    source, place = (axis % len(axes) for axis in moved or (-2, -1))
    axes.insert(place, axes.pop(source))
    return axes


def type_converted_to(node: Node) -> torch.dtype | None:
    """The type that a node converts its input to; None if it is no conversion, or may do more.

    A conversion to the type that is there gives its input itself.
    """
    if node.target not in _CONVERSIONS or not isinstance(node.args[0], Node):
        return None
    before, after = node.args[0].meta.get("val"), node.meta.get("val")
    if not isinstance(before, Tensor) or not isinstance(after, Tensor):
        return None
    names = [argument.name for argument in node.target._schema.arguments]
    given = dict(zip(names, node.args, strict=False)) | node.kwargs
    moves = before.device != after.device or before.layout != after.layout
    copies = before.dtype == after.dtype and given.get("copy", False)
    laid_out = given.get("memory_format") not in (None, torch.preserve_format)
    return None if moves or copies or laid_out or given.get("pin_memory") else after.dtype


def replace_by_input(program: ExportedProgram, node: Node) -> None:
    """Remove a node that gives its first input."""
    given: Any = node.args[0]
    node.replace_all_uses_with(given)
    program.graph_signature.replace_all_uses(node.name, given.name)  # it lists outputs by name
    node.graph.erase_node(node)


def _type(value: Any) -> torch.dtype | None:
    """The type of a node that is a tensor."""
    return getattr(value.meta.get("val"), "dtype", None) if isinstance(value, Node) else None


def _is_in_place(target: Any) -> bool:
    schema = getattr(target, "_schema", None)
    return schema is not None and schema.is_mutable


def _has_own_memory(values: Node, only: Node) -> bool:
    """Whether a tensor is no view, and used by one node only, which may write to it."""
    made = values.target in _MAKERS or torch.Tag.pointwise in getattr(values.target, "tags", ())
    return made and not _is_in_place(values.target) and list(values.users) == [only]
