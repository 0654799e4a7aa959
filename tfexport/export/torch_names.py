"""Names that are private to torch and its exporter. Each is looked up where it is used.

A torch that moved one loses what uses the name: a shortcut, a form of a layer, a line in a message,
or one kind of file. Nothing else fails.
"""

from importlib import import_module
from typing import Any

import torch

from tfexport.errors import ExportError

# Shortcuts of the ONNX exporter; see ``graphs.shortcuts``.
DECOMPOSE = "torch.onnx._internal.exporter._fx_passes:decompose_with_registry"
LIST_OPERATORS = "torch.onnx._internal.exporter._registration:ONNXRegistry.from_torchlib"
_PROMOTION = "torch.onnx._internal.fx.passes.type_promotion"
RUN_NODE = f"{_PROMOTION}:_TypePromotionInterpreter.run_node"
PROMOTE = f"{_PROMOTION}:_TypePromotionInterpreter._maybe_promote_node"
SET_NODE = f"{_PROMOTION}:_TypePromotionInterpreter._set_current_node"
FIND_RULE = f"{_PROMOTION}:get_type_promotion_rule"
TRY_RULE = "onnxscript.rewriter._rewrite_rule:RewriteRule.try_rewrite"
RULE_MATCHER = "onnxscript.rewriter._matcher:SimplePatternMatcher"
COPY = "torch:ops.aten._to_copy.default"
ASSERT_TYPE = "torch:ops.aten._assert_tensor_metadata.default"
GUARDS = "_guards_code"  # of an ``ExportedProgram``, not of its class, so that ``find`` has it not
ASSERTIONS = (
    "torch:ops.aten.sym_constrain_range_for_size.default",
    "torch:ops.aten._assert_async.default",
    "torch:ops.aten._assert_async.msg",
    "torch:ops.aten._assert_scalar.default",
    ASSERT_TYPE,
)

# Forms of layers, and lines in messages, of custom modules; see ``graphs.torch_layers``.
CAUSAL_HINT = "torch.nn.modules.transformer:_detect_is_causal_mask"
TENSOR_LISTS = (  # of the classes of tensors while torch traces
    "torch._subclasses.fake_tensor:FakeTensor.tolist",
    "torch._subclasses.functional_tensor:FunctionalTensor.tolist",
)
TRUTH = "torch:SymBool.__bool__"
UNKNOWN_VALUE = "torch.fx.experimental.symbolic_shapes:GuardOnDataDependentSymNode"
SET_SIZE = "torch.fx.experimental.symbolic_shapes:ShapeEnv._set_replacement"
CHOOSE_LINES = "torch.fx.proxy:TracerBase._filter_traceback_frames"
PACK = "torch:_C._VariableFunctions._pack_padded_sequence"
UNPACK = "torch:_C._VariableFunctions._pad_packed_sequence"

# Shapes of a captured forward's graphs; see ``incremental.fused``.
WITHOUT_VALUES = "torch._subclasses.fake_tensor:FakeTensorMode"
TENSOR_WITHOUT_VALUES = "torch._subclasses.fake_tensor:FakeTensor"

# Attention of a user's forward; see ``incremental.cross_attention``.
DISPATCH_MODE = "torch.utils._python_dispatch:TorchDispatchMode"

# Operators of a captured forward; see ``incremental.functional``.
OPERATOR = "torch:_ops.OpOverload"
COMPOSITE = "torch:_C.DispatchKey.CompositeImplicitAutograd"

# TorchScript files.
READ_ARCHIVE = "torch:_C.PyTorchFileReader"
WRITE_ARCHIVE = "torch:_C.PyTorchFileWriter"

NAMES = (
    DECOMPOSE, LIST_OPERATORS, RUN_NODE, PROMOTE, SET_NODE, FIND_RULE, TRY_RULE,
    RULE_MATCHER, COPY, *ASSERTIONS,
    CAUSAL_HINT, *TENSOR_LISTS, TRUTH, UNKNOWN_VALUE, SET_SIZE, CHOOSE_LINES, PACK, UNPACK,
    WITHOUT_VALUES, TENSOR_WITHOUT_VALUES, DISPATCH_MODE, OPERATOR, COMPOSITE,
    READ_ARCHIVE, WRITE_ARCHIVE,
)  # fmt: skip


def find(name: str) -> Any:
    """Find a name in the installed torch; None if it does not exist.

    Args:
        name: one of ``NAMES``, in the form ``module:attribute``.
    """
    module, _, path = name.partition(":")
    try:
        found: Any = import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        return None
    return found


def owner_of(name: str) -> tuple[Any, str] | None:
    """The class or module that contains a name, and the attribute; None if it does not exist.

    Args:
        name: one of ``NAMES``.
    """
    if find(name) is None:
        return None
    module, _, path = name.partition(":")
    holder, _, attribute = path.rpartition(".")
    return find(f"{module}:{holder}") if holder else import_module(module), attribute


def need(name: str, purpose: str) -> Any:
    """Find a name that is required in the installed torch.

    Args:
        name: one of ``NAMES``.
        purpose: what needs it.

    Raises:
        ExportError: the name does not exist.
    """
    if (found := find(name)) is None:
        lacking = name.replace(":", ".")
        raise ExportError(
            f"torch {torch.__version__} has no {lacking}, which {purpose} needs; "
            "install an earlier torch"
        )
    return found
