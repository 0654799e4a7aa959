"""Checkpoints of fairseq, OpenNMT-py and JoeyNMT, which hold Python objects beside their weights.

They are read without their toolkits: nothing is imported, and of the objects only options are used.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfexport.model_src.checkpoint import claims
from tfexport.model_src.checkpoint.archive import Contents
from tfexport.model_src.checkpoint.inert import is_namespace, plain_value
from tfexport.model_src.checkpoint.stored_tensors import read_tensors
from tfexport.model_src.checkpoint.toolkit_words import special_ids
from tfexport.model_src.checkpoint.wrappers import StateDict, check_keys

# What toolkits call the best checkpoint of a training: fairseq, JoeyNMT, Sockeye, Marian-NMT.
TOOLKIT_NAMES = ("checkpoint_best.pt", "best.ckpt", "params.best", "model.npz")
MODEL_TYPE = "model_type"
FAIRSEQ, OPENNMT_PY = "fairseq", "opennmt-py"
# Of a checkpoint of fairseq, beside "model" and "args" or "cfg".
_FAIRSEQ_KEYS = ("extra_state", "optimizer_history", "task_state", "last_optimizer_state")
_FAIRSEQ_WEIGHT = re.compile(r"(en|de)coder\.layers\.\d+\.(self_attn_layer_norm|layer_norms|fc1)\b")
_JOEY_WEIGHT = re.compile(r"\.(src_src|trg_trg)_att\.")


def read_toolkit(path: Path, contents: Contents) -> StateDict | None:
    """The weights and options of a toolkit's checkpoint; None for any other file.

    Raises:
        PickleError: damaged, or its sizes contradict the file's.
        CheckpointError: more keys than a model has.
        OSError: the file cannot be read.
    """
    value = contents.value
    if not isinstance(value, dict):
        return None
    if is_namespace(value.get("opt")) and "vocab" in value:
        return _read_opennmt(path, contents)
    if isinstance(model := value.get("model"), dict) and _is_fairseq(value, model):
        options = _fairseq_options(value)
        if options is None:
            return None
        return _state(path, contents, model, FAIRSEQ, {"args": options})
    model = value.get("model_state")
    if isinstance(model, dict) and any(_matches(_JOEY_WEIGHT, key) for key in model):
        return _state(path, contents, model)
    return None


def _matches(pattern: re.Pattern[str], key: Any) -> bool:
    return isinstance(key, str) and pattern.search(key[:512]) is not None


def _is_fairseq(value: Mapping[Any, Any], model: Mapping[Any, Any]) -> bool:
    if any(key in value for key in _FAIRSEQ_KEYS):
        return True
    return any(_matches(_FAIRSEQ_WEIGHT, key) for key in model)


def _fairseq_options(value: Mapping[Any, Any]) -> dict[str, Any] | None:
    """The options of ``args``, or of the ``cfg`` that came after it: those of the model."""
    if is_namespace(value.get("args")):
        options: dict[str, Any] = plain_value(value["args"])
        return options
    config = plain_value(value.get("cfg"))
    model = config.get("model") if isinstance(config, dict) else None
    return model if isinstance(model, dict) else None


def _read_opennmt(path: Path, contents: Contents) -> StateDict:
    """``generator`` is a state dict of its own; in a file that goes with safetensors it is none."""
    value = contents.value
    model = value.get("model")
    model = dict(model) if isinstance(model, dict) else {}
    generator = value.get("generator")
    if isinstance(generator, dict):
        model |= {f"generator.{key}": item for key, item in generator.items()}
    options = {"opt": plain_value(value["opt"]), "ids": special_ids(value["vocab"])}
    return _state(path, contents, model, OPENNMT_PY, options)


def _state(
    path: Path,
    contents: Contents,
    model: Mapping[Any, Any],
    model_type: str = "",
    options: Mapping[str, Any] | None = None,
) -> StateDict:
    claims.survey(contents)
    check_keys([str(key) for key in model], path)
    wanted = {str(key): item for key, item in model.items()}
    tensors = read_tensors(path, contents, wanted)
    others = tuple(key for key in wanted if key not in tensors)
    config = {} if options is None else {**options, MODEL_TYPE: model_type}
    return StateDict(path, tensors, others, config=config, config_name=f"{path.name}'s options")
