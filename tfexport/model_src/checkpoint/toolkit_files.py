"""Files with options that toolkits keep beside their weights."""

import dataclasses
import re
from collections.abc import Iterable
from pathlib import Path

from tfexport.model_src.checkpoint.toolkit_pickles import MODEL_TYPE
from tfexport.model_src.checkpoint.wrappers import StateDict
from tfexport.model_src.checkpoint.yaml_values import read_yaml

JOEYNMT, SOCKEYE = "joeynmt", "sockeye"
# Patterns of keys that only a toolkit has, with its file of options and its ``model_type``.
_BESIDE = (
    (re.compile(r"\.(src_src|trg_trg)_att\."), "config.yaml", JOEYNMT),
    (re.compile(r"\.(self_attention|enc_attention)\.ff_(in|kv)\."), "config", SOCKEYE),
)


def with_options_beside(found: StateDict) -> StateDict:
    """A state dict with the options of its toolkit, where the folder has them.

    Raises:
        CheckpointError: the file of options is damaged.
    """
    if found.config:
        return found
    for pattern, name, model_type in _BESIDE:
        path = found.path.with_name(name)
        if _any(pattern, found.tensors) and path.is_file():
            config = {**_read(path), MODEL_TYPE: model_type}
            return dataclasses.replace(found, config=config, config_name=name)
    return found


def _read(path: Path) -> dict[str, object]:
    return {str(key): value for key, value in read_yaml(path).items()}


def _any(pattern: re.Pattern[str], names: Iterable[str]) -> bool:
    return any(pattern.search(name) for name in names)
