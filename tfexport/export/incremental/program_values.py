"""The values of a captured program: the one evaluator of those who run it, whole or in parts."""

import operator
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from tfexport.export.incremental.recurrent import is_recurrent, sequence


class ProgramValues(dict[fx.Node, Any]):
    """The values of a graph's nodes: those that are known, and others when they are asked for.

    ``in`` and ``get`` compute nothing: they see what is known or was computed.

    Args:
        known: by node; at least of the inputs that others need.
    """

    @torch.no_grad()
    def __missing__(self, node: fx.Node) -> Any:
        """Compute the value of a node; it and all that it needs are kept."""
        waiting = [node]
        while waiting:
            last = waiting[-1]
            missing = [each for each in last.all_input_nodes if each not in self]
            waiting += missing
            if not missing:
                waiting.pop()
                if last not in self:
                    self[last] = self._compute(last)
        return self[node]

    def _compute(self, node: fx.Node) -> Any:
        target: Any = node.target
        args, kwargs = fx.map_arg((node.args, node.kwargs), self.__getitem__)
        if node.op == "get_attr":
            return operator.attrgetter(target)(node.graph.owning_module)
        if node.op == "output":
            return args[0]
        return sequence(target, *args, **kwargs) if is_recurrent(node) else target(*args, **kwargs)

    def run(
        self, nodes: Sequence[fx.Node], kept: Collection[fx.Node]
    ) -> Iterator[tuple[fx.Node, Any]]:
        """Compute nodes in their order, and give each with its value.

        Args:
            nodes: of the graph.
            kept: the nodes whose values stay. Others are forgotten after their last use, but for
                those that were known before.
        """
        last_use = {each: node for node in nodes for each in (node, *node.all_input_nodes)}
        forgotten = defaultdict[fx.Node, list[fx.Node]](list)
        for each, node in last_use.items():
            if each not in kept and each not in self:
                forgotten[node].append(each)
        for node in nodes:
            yield node, self[node]
            for each in forgotten[node]:
                del self[each]

    def recomputed(self, nodes: Sequence[fx.Node], known: Mapping[fx.Node, Any]) -> Any:
        """The value of the last of some nodes, which are computed from other known values.

        Args:
            nodes: in their order. What they take from elsewhere has its value of here.
            known: other values of nodes, most often of what the first ones take.
        """
        values, value = ProgramValues(known), None
        for node in nodes:
            values.update({each: self[each] for each in node.all_input_nodes if each not in values})
            value = values[node]
        return value
