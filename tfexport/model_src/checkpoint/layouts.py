"""All layouts, and which of them a state dict is in."""

from collections.abc import Mapping

from torch import Tensor

from tfexport.errors import CheckpointError, join_problems
from tfexport.model_src.checkpoint.annotated import ANNOTATED
from tfexport.model_src.checkpoint.keymap import Layout
from tfexport.model_src.checkpoint.load import StateDict
from tfexport.model_src.checkpoint.native import METADATA_KEY, NATIVE
from tfexport.model_src.checkpoint.nn_transformer import NN_TRANSFORMER, REBUILT
from tfexport.model_src.checkpoint.rmsnorm import RMSNORM

LAYOUTS = {layout.name: layout for layout in (NN_TRANSFORMER, REBUILT, ANNOTATED, RMSNORM, NATIVE)}


def detect_layout(raw: StateDict, tensors: Mapping[str, Tensor], name: str | None) -> Layout:
    """The layout whose table knows most of the keys; ``name`` forces one.

    Raises:
        CheckpointError: no table knows half of the keys.
    """
    if name is not None:
        return LAYOUTS[name]
    if METADATA_KEY in raw.metadata:
        return NATIVE
    foreign = [layout for layout in LAYOUTS.values() if layout is not NATIVE]
    best = max(foreign, key=lambda layout: len(layout.map_keys(tensors)))
    known = best.map_keys(tensors)
    if 2 * len(known) < len(tensors) or not known:
        unknown = [f"{key} is not one of its keys" for key in tensors if key not in known]
        raise CheckpointError(
            join_problems(
                f"{raw.path}: no known layout; nearest is {best.name} "
                f"({len(known)} of {len(tensors)} keys)",
                unknown,
                "Map your names onto a known layout with the config's 'rename' table.",
            )
        )
    return best
