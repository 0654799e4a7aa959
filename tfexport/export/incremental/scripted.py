"""Found steps as TorchScript: their graphs of torch's operators, with methods around them."""

from typing import Any

import torch
from torch import fx, nn

from tfexport.errors import ExportError
from tfexport.export.graphs.kernels import source_line
from tfexport.export.incremental.recurrent import one_step, sequence
from tfexport.export.incremental.step_graphs import FoundSteps, Start, WholeForward
from tfexport.export.modules.contract import ByForward

# Arguments of operators that are the same for all tensors on a CPU.
_OF_DEVICES = ("device", "layout", "pin_memory")
METHODS = ("encode", "start", "step")


class _Graphs(nn.Module):
    def __init__(self, encoder: nn.Module, one_step: nn.Module) -> None:
        super().__init__()
        self.encoder, self.one_step = encoder, one_step


def script_steps(model: ByForward) -> Any:
    """Script the encoder and the step that were found in a forward.

    Args:
        model: as ``find_steps`` gives it.

    Returns:
        A scripted module with ``encode``, ``start`` and ``step`` of docs/modules.md.

    Raises:
        ExportError: there is no step, or it has an operator without a form in TorchScript.
    """
    name = type(model.own.model).__name__
    if isinstance(model, WholeForward):
        raise ExportError(f"no step was found in {name}.forward: {model.why}")
    assert isinstance(model, FoundSteps)
    made = torch.jit.script(_Graphs(_scriptable(model.encoder), _scriptable(model.one_step)).eval())
    count, starts = len(model.analysis.memory), model.starts()
    memory, states = _named("memory", count), _named("state", len(starts))
    inputs = _named("input", len(model.analysis.program.inputs))
    of_memory, of_state = _tuple(count), _tuple(len(starts))
    held = [f"memory[{i}]" for i in range(count)]
    made.define(f"def encode(self, {_typed(inputs)}) -> {of_memory}:\n"
                f"    return self.encoder({', '.join(inputs)})\n")  # fmt: skip
    made.define(f"def start(self, {_typed(memory)}) -> {of_state}:\n"
                f"    return ({' '.join(f'{_start(each)},' for each in starts)})\n")  # fmt: skip
    given = ", ".join(["token", *(f"state[{i}]" for i in range(len(states))), *held])
    made.define("def step(self, token: Tensor, position: Tensor, "
                f"state: {of_state}, memory: {of_memory}) -> Tuple[Tensor, {of_state}]:\n"
                f"    return self.one_step({given})\n")  # fmt: skip
    return made


def _scriptable(module: fx.GraphModule) -> fx.GraphModule:
    """The graph with operators that TorchScript finds by their names."""
    graph, made = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in module.graph.nodes:
        if node.target in (one_step, sequence):
            line = source_line(node.meta.get("stack_trace") or "")
            raise ExportError(
                "recurrent layers over the target, or in the encoder, have no form in TorchScript "
                f"here{f': {line}' if line else ''}"
            )
        copied = made[node] = graph.node_copy(node, lambda each: made[each])
        if copied.target is torch.ops.aten.sym_size.int:
            copied.target = torch.ops.aten.size
        elif hasattr(copied.target, "overloadpacket"):
            copied.target = copied.target.overloadpacket
        elif copied.target is torch.sym_float:
            copied.target = float
        copied.kwargs = {key: it for key, it in copied.kwargs.items() if key not in _OF_DEVICES}
    return fx.GraphModule(module, graph)


def _start(state: Start) -> str:
    """The code of a state before the first token."""
    if state.memory is not None:
        return f"memory_{state.memory}.clone()"
    sizes = [
        str(size) if isinstance(size, int) else "memory_{}.size({})".format(*size)
        for size in state.shape
    ]
    return f"torch.zeros([{', '.join(sizes)}], dtype={state.dtype})"


def _named(name: str, count: int) -> list[str]:
    return [f"{name}_{i}" for i in range(count)]


def _typed(names: list[str]) -> str:
    return ", ".join(f"{name}: Tensor" for name in names)


def _tuple(count: int) -> str:
    return f"Tuple[{', '.join(['Tensor'] * count) or '()'}]"
