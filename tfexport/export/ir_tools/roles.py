"""Roles of weights (embedding, projection, …), in the metadata of their initializers.

They are written when a weight is created. Passes that treat weights differently read the role, and
never infer it from names, sizes or operators.
"""

from dataclasses import dataclass

import onnx_ir as ir

EMBEDDING = "embedding"  # a table of a vocabulary, rows by token id
POSITIONS = "positions"  # a table of positions
PROJECTION = "projection"  # onto the vocabulary
MATRIX = "matrix"  # any other weight
_PARAMETER, _ROLE, _TRANSPOSED = "tfexport.parameter", "tfexport.role", "tfexport.transposed"
_READS_WHOLE = "tfexport.reads_whole_table"


@dataclass(frozen=True)
class Role:
    """The role of one initializer.

    Attributes:
        parameter: of the model, by its name there.
        kind: one of the roles above.
        transposed: it is the parameter's transpose.
    """

    parameter: str
    kind: str = MATRIX
    transposed: bool = False


def write_role(value: ir.Value, role: Role) -> None:
    """Write a role to the metadata of an initializer."""
    value.metadata_props[_PARAMETER] = role.parameter
    value.metadata_props[_ROLE] = role.kind
    if role.transposed:
        value.metadata_props[_TRANSPOSED] = "true"


def read_role(value: ir.Value) -> Role | None:
    """The role of an initializer; None for constants."""
    found = value.metadata_props
    if _PARAMETER not in found:
        return None
    return Role(found[_PARAMETER], found.get(_ROLE, MATRIX), _TRANSPOSED in found)


def mark_whole_reader(node: ir.Node) -> None:
    """Mark a node that reads a whole table, which has to stay float32 for the nodes after it."""
    node.metadata_props[_READS_WHOLE] = "true"


def reads_whole(node: ir.Node) -> bool:
    """Whether a node was marked by ``mark_whole_reader``."""
    return _READS_WHOLE in node.metadata_props
