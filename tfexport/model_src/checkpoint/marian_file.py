"""Model files of Marian-NMT: arrays, and the options of the training as one of them."""

from pathlib import Path

import numpy as np
import torch

from tfexport.errors import CheckpointError
from tfexport.model_src.checkpoint.arrays import read_arrays
from tfexport.model_src.checkpoint.foreign import describe_names
from tfexport.model_src.checkpoint.toolkit_pickles import MODEL_TYPE
from tfexport.model_src.checkpoint.unsupported import told
from tfexport.model_src.checkpoint.wrappers import StateDict, check_keys
from tfexport.model_src.checkpoint.yaml_values import parse_yaml

SUFFIX = ".npz"
MARIAN_NMT = "marian-nmt"
_OPTIONS = "special:model.yml"


def read_marian(path: Path) -> StateDict:
    """The weights and options of a ``.npz`` file.

    Raises:
        CheckpointError: damaged, or not of Marian-NMT.
        OSError: the file cannot be read.
    """
    arrays = read_arrays(path)
    check_keys(arrays, path)
    options = arrays.pop(_OPTIONS, None)
    if options is None:
        other = describe_names(arrays) or f"for it holds no {_OPTIONS}."
        raise CheckpointError(told(f"{path}: no model of Marian-NMT, {other}"))
    text = options.tobytes().rstrip(b"\0")
    config = {"options": parse_yaml(text, f"{path}: {_OPTIONS}"), MODEL_TYPE: MARIAN_NMT}
    kinds = (np.float32, np.float64, np.float16)
    wrong = [name for name, array in arrays.items() if array.dtype.newbyteorder("=") not in kinds]
    if wrong:
        raise CheckpointError(
            f"{path}: {wrong[0]} holds {arrays[wrong[0]].dtype} values; a model whose weights are "
            "packed or quantized is not supported. Give the model.npz that it was made of."
        )
    tensors = {name: torch.from_numpy(array.astype(np.float32)) for name, array in arrays.items()}
    return StateDict(path, tensors, config=config, config_name=_OPTIONS)
