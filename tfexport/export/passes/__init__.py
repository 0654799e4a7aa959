"""Graph to the same graph, faster or smaller; no torch. The order of all passes is here."""

from onnx_ir.passes import Sequential
from onnx_ir.passes.common import ClearMetadataAndDocStringPass, DeduplicateInitializersPass

from tfexport.export.passes.names import NameWeights, NumberOperators
from tfexport.export.passes.pack_qkv import PackQKV
from tfexport.export.passes.place_weights import PlaceWeights
from tfexport.export.passes.unfuse_residual_norm import UnfuseResidualNorm

# For a graph that torch exported, once its parameters are set.
AFTER_EXPORT = Sequential(
    # torch notes where each node comes from, with the folders of this machine.
    ClearMetadataAndDocStringPass(),
    # Before operators are packed: new nodes are named after them.
    NumberOperators(),
    # Before weights are packed: what is made of them gets a name and a role made of theirs.
    NameWeights(),
    # Before sums are rewritten: it looks for the Add of a bias.
    PackQKV(),
    UnfuseResidualNorm(),
)

# For a whole graph that is saved with its weights inside. For graphs that share a weights.bin,
# ``share_weights`` takes the place of the first. Both come after ``share_transposed``, which finds
# more that is equal, and after quantising, which looks for weights in the outermost graph.
BEFORE_SAVE = Sequential(
    DeduplicateInitializersPass(),
    # Last: whatever else changes graphs looks for weights in the outermost one.
    PlaceWeights(),
)
