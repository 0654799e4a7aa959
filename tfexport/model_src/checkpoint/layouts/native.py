"""The project's own format: safetensors, the model's own names, the config in the metadata."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from tfexport.atomic import new_file
from tfexport.model_src.checkpoint.keymap import POSITION_TABLE, Entries, KeyTable
from tfexport.model_src.checkpoint.layout import Layout
from tfexport.model_src.checkpoint.overrides import parse_config
from tfexport.model_src.transformer import Transformer

METADATA_KEY = "tfexport_config"

# fmt: off
_WORDS = {"attention": {"self_attn": "self_attn", "cross_attn": "cross_attn"}}
_PROJECTION = "{stack}.layers.{layer}.{attention}.{part}_proj"
_TABLE: Entries = {
    # The names are the module's own. A rename table may lead to two more forms: position tables
    # with axes of length 1, and one Linear for each head.
    "{side}_embedding.positions.table": ("{side}_embedding.positions.table", POSITION_TABLE),
    "encoder.positions.table": ("encoder.positions.table", POSITION_TABLE),
    f"{_PROJECTION}.{{kind}}": f"{_PROJECTION}.{{kind}}",
    f"{_PROJECTION}.{{head}}.{{kind}}": f"{_PROJECTION}.{{kind}}",
    "{weight}": "{weight}",
}
# fmt: on

NATIVE = Layout(
    name="native",
    title="tfexport",
    table=KeyTable(_TABLE, _WORDS),
    no_reference="the layout 'native' is that of tfexport's own modules",
    precedence=-1,
)


def save_checkpoint(model: Transformer, path: str | os.PathLike[str], force: bool = False) -> None:
    """Write a model with its config, for ``load_checkpoint`` or ``tfexport onnx`` to read.

    Raises:
        OutputExistsError: the file exists and ``force`` is false.
    """
    tensors: dict[str, Tensor] = {}
    stored: dict[int, str] = {}
    for name, tensor in model.state_dict().items():
        # A tied table is stored under its first name only; the config has the ties.
        if stored.setdefault(tensor.data_ptr(), name) == name or tensor.numel() == 0:
            tensors[name] = tensor.detach().contiguous()
    with new_file(path, force) as partial:
        save_file(tensors, partial, {METADATA_KEY: json.dumps(model.config.to_dict())})


def read_metadata(metadata: Mapping[str, str], path: Path) -> dict[str, Any]:
    """The config values in a native file's metadata.

    Raises:
        CheckpointError: the metadata is not a config.
    """
    return parse_config(metadata[METADATA_KEY].encode(), f"{path}: the config in its metadata")
