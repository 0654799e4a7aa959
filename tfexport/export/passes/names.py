"""Passes that name operators and weights, and write the roles of weights."""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import onnx_ir as ir

from tfexport.export.ir_tools.nodes import Array, content_key, rename_initializer, value_key
from tfexport.export.ir_tools.roles import Role, write_role

_PARAMETERS = "tfexport.parameters"


class Parameter(NamedTuple):
    """A parameter or buffer of the module that a graph was exported from."""

    role: Role
    values: Array


def set_parameters(model: ir.Model, parameters: Mapping[str, Parameter]) -> None:
    """Give ``NameWeights`` a graph's parameters, by the exporter's names; they are not saved."""
    model.meta[_PARAMETERS] = parameters


class NumberOperators(ir.passes.InPlacePass):
    """Names every contrib operator after its type, with a number.

    The exporter gives all operators that torch lacks the same name.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Name the contrib operators of the outermost graph."""
        own = [node for node in model.graph if node.domain]
        for i, node in enumerate(own):
            node.name = f"{node.op_type}_{i}"
        return ir.passes.PassResult(model, bool(own))


class NameWeights(ir.passes.InPlacePass):
    """Gives weights the names of their parameters, and writes their roles.

    The exporter transposes matrices ahead of time, once for each use, and calls the results
    ``val_56``. They get the names of the parameters they came from, so that a graph viewer and
    messages show those, and copies of one matrix become one.
    """

    def requires(self, model: ir.Model) -> None:
        """``set_parameters`` was called."""
        if _PARAMETERS not in model.meta:
            raise ir.passes.PreconditionError("the model's parameters are not known")

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Name the weights of the outermost graph."""
        graph = model.graph
        parameters: Mapping[str, Parameter] = model.meta.pop(_PARAMETERS)
        folded: dict[str, ir.Value] = {}
        for name, value in list(graph.initializers.items()):
            if name in parameters:
                _name(value, parameters[name].role)
            elif value.const_value is not None and value.const_value.size > 1:
                folded[name] = value
        roles = _roles_by_content(parameters, transposes=bool(folded))
        for name, value in folded.items():
            role = roles.get(value_key(value))
            if role is None:
                continue
            same = graph.initializers.get(_weight_name(role))
            if same is None:
                _name(value, role)
            else:
                ir.convenience.replace_all_uses_with(value, same)
                del graph.initializers[name]
        return ir.passes.PassResult(model, True)


def _roles_by_content(parameters: Mapping[str, Parameter], transposes: bool) -> dict[str, Role]:
    roles: dict[str, Role] = {}
    for role, values in parameters.values():
        roles.setdefault(content_key(values), role)
        if transposes and values.ndim == 2:
            roles.setdefault(content_key(values.T), replace(role, transposed=True))
    return roles


def _name(value: ir.Value, role: Role) -> None:
    write_role(value, role)
    rename_initializer(value, _weight_name(role))


def _weight_name(role: Role) -> str:
    return f"{role.parameter}.T" if role.transposed else role.parameter
