"""Graph passes, which keep what a graph computes; without torch. Their order is set here."""

from onnx_ir.passes import Sequential
from onnx_ir.passes.common import ClearMetadataAndDocStringPass, DeduplicateInitializersPass

from tfexport.export.passes.after_export import (
    NameWeights,
    NumberOperators,
    PackQKV,
    UnfuseResidualNorm,
)
from tfexport.export.passes.weights import PlaceWeights

# For a graph that torch exported, after ``set_parameters``.
AFTER_EXPORT = Sequential(
    # torch records the source line of each node, with local paths.
    ClearMetadataAndDocStringPass(),
    # Before operators are packed: new nodes are named after them.
    NumberOperators(),
    # Before weights are packed: a packed weight gets its name and role from theirs.
    NameWeights(),
    # Before sums are rewritten: it looks for the Add of a bias.
    PackQKV(),
    UnfuseResidualNorm(),
)

# For a graph that is saved with its weights inside. For the graphs of a bundle, which share a
# weights.bin, ``share_weights`` replaces the first pass. Both run after ``share_transposed``, which
# makes more weights equal, and after quantising, which expects weights in the outermost graph.
BEFORE_SAVE = Sequential(
    DeduplicateInitializersPass(),
    # Last: all other passes expect weights in the outermost graph.
    PlaceWeights(),
)
