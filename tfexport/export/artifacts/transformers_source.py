"""Models of transformers that no layout reads: loaded, and described as modules with a forward.

The class of the folder is the installed one; no code of a folder is run. Weights are read as those
of every checkpoint: safetensors, or pickles of plain tensors.
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tfexport.bundle import SpecialIds
from tfexport.errors import (
    CheckpointError,
    ConfigError,
    join_problems,
    join_some,
    missing_dependency,
)
from tfexport.export.artifacts.transformers_call import (
    Inputs,
    Runs,
    TransformersModel,
    block_size_of,
    decoder_config,
    size_limits,
)
from tfexport.export.artifacts.transformers_classes import check_class, check_encoder
from tfexport.export.artifacts.whisper_settings import read_speech, without_prefix
from tfexport.export.quiet import quiet
from tfexport.export.reference.library_class import (
    find_class,
    import_transformers,
    load_class,
)
from tfexport.export.text.model_tokenizers import InstalledTokenizer, find_installed_tokenizer
from tfexport.model_src.build import copy_sharing
from tfexport.model_src.checkpoint.checkpoint import Checkpoint
from tfexport.model_src.checkpoint.files import CheckpointFiles
from tfexport.model_src.checkpoint.generation_config import (
    GENERATION_FILE,
    Generation,
    read_generation,
)
from tfexport.model_src.checkpoint.layouts import layouts_of
from tfexport.model_src.checkpoint.read_options import CheckpointLike, files_of
from tfexport.model_src.checkpoint.unsupported import is_one_stack
from tfexport.model_src.checkpoint.weight_files import load_state_dict


def find_transformers(checkpoint: CheckpointLike, layout: str | None) -> Mapping[str, Any] | None:
    """The config.json of a folder whose model no layout reads, but transformers has.

    Args:
        checkpoint: as ``export`` takes it.
        layout: that the caller names; then a layout reads it.

    Returns:
        None for every other checkpoint, with which the layouts deal.
    """
    if layout is not None:
        return None
    values = _values_of(checkpoint)
    kind = values.get("model_type")
    if not isinstance(kind, str) or layouts_of(values):
        return None
    return None if is_one_stack(values) else values


def _values_of(checkpoint: CheckpointLike) -> Mapping[str, Any]:
    """The values of the config.json of a checkpoint; none if it has no such file."""
    config = getattr(checkpoint, "config", None)
    if isinstance(checkpoint, nn.Module):
        return _written(config) if isinstance(getattr(config, "model_type", None), str) else {}
    files = files_of(checkpoint)
    return {} if files is None or isinstance(checkpoint, Checkpoint) else files.config


def find_tokenizer(
    found: TransformersModel, values: Mapping[str, Any]
) -> InstalledTokenizer | None:
    """The tokenizer of a model's folder, by the values of its config.json; None if it has none."""
    if found.folder is None:
        return None
    return find_installed_tokenizer(found.folder, values, _library(found.folder))


def read_transformers(
    checkpoint: CheckpointLike, values: Mapping[str, Any], settings: Mapping[str, Any]
) -> TransformersModel:
    """Load a model and find out how it is called and decoded.

    Args:
        checkpoint: as ``export`` takes it.
        values: of its config.json; see ``find_transformers``.
        settings: ``max_length`` in place of the model's own, if any.

    Raises:
        CheckpointError: the class is unknown, no encoder-decoder, or the weights are not its own.
        ConfigError: its inputs, special ids or decoding defaults are not supported.
        MissingDependencyError: transformers is not installed.
    """
    files = files_of(checkpoint)
    loaded = _of_module(checkpoint, values) if files is None else _load(files, values)
    model, name = loaded.model, loaded.name
    _without_cache(model)
    of_encoder = check_encoder(name, model)
    with torch.no_grad(), quiet():
        inputs = Inputs(name, model).find()
        described = TransformersModel(
            name, loaded.folder, model, inputs, SpecialIds(0, 0, 0), 1, Generation(),
            limits=size_limits(model), block=block_size_of(model.config),
        )  # fmt: skip
        tried = Runs(described, _start_of(loaded))
        examples, once = tried.examples(), tried.encodes_once()
        if loaded.missing:
            tried.refuse_missing(loaded.missing)
        size = tried.vocab_size()
        generation, notes = _generation(loaded, size)
        special = _special_ids(loaded, generation, size)
        max_length = tried.longest(settings.get("max_length"), generation)
    speech, of_speech = read_speech(loaded.config, loaded.generation, special.eos, max_length)
    if "encoder_no_repeat_ngram_size" in generation.defaults and inputs[0].name != "input_ids":
        raise ConfigError(
            f"{name}: encoder_no_repeat_ngram_size is not supported: the source is not ids. "
            f"Remove the key from {GENERATION_FILE} if the model does not need it."
        )
    defaults = {**generation.defaults}
    defaults["max_length"] = min(defaults["max_length"], max_length)
    if "min_length" in defaults:
        defaults["min_length"] = min(defaults["min_length"], defaults["max_length"])
    return dataclasses.replace(
        described, special=special, max_length=max_length,
        generation=dataclasses.replace(generation, defaults=defaults, speech=speech),
        notes=(*loaded.notes, *of_encoder, *generation.notes, *notes, *of_speech),
        examples=examples, encodes_once=once,
    )  # fmt: skip


@dataclass(frozen=True)
class _Loaded:
    """A model with its weights, and the values of its files.

    Attributes:
        missing: names of parameters that no file has.
        notes: remarks.
    """

    name: str
    folder: Path | None
    model: Any
    config: Mapping[str, Any]
    generation: Mapping[str, Any]
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def _of_module(model: Any, values: Mapping[str, Any]) -> _Loaded:
    """A model in memory: a copy with the same tensors, as settings of its config are changed."""
    generation = getattr(model, "generation_config", None)
    found = {} if generation is None else _written(generation)
    kind = type(model)
    check_class(kind.__name__, kind, model.config)
    return _Loaded(kind.__name__, None, copy_sharing(model).eval(), values, found)


def _load(files: CheckpointFiles, values: Mapping[str, Any]) -> _Loaded:
    """The model of a folder, or of a file of weights in it."""
    transformers, folder = _library(files.path), files.folder
    if values.get("quantization_config") is not None:
        raise CheckpointError(
            f"{folder}: quantization_config: quantized weights are not read; pass the original "
            "model."
        )
    config, kind = find_class(transformers, folder, values)
    check_class(str(folder), kind, config)
    loaded = load_class(transformers, folder, kind, config, load_state_dict(files).tensors)
    model, unread = loaded.model, loaded.unread
    notes = [f"{kind.__name__} has no place for {join_some(unread)}"] if unread else []
    generation = files.generation_config
    if generation is None:
        generation = _written(model.generation_config)
    return _Loaded(
        str(files), folder, model, _written(model.config), generation, loaded.missing, tuple(notes)
    )


def _library(path: Path) -> Any:
    transformers = import_transformers()
    if transformers is None:
        raise missing_dependency(
            f"{path}: no layout reads this model, and its own forward is exported with the library "
            "transformers, which is not installed", "transformers",
        )  # fmt: skip
    return transformers


def _written(config: Any) -> dict[str, Any]:
    """The values that transformers writes to a file."""
    values: dict[str, Any] = json.loads(config.to_json_string())
    return values


def _without_cache(model: nn.Module) -> None:
    """Have the forward compute all rows, and keep none."""
    for part in model.modules():
        config = getattr(part, "config", None)
        if config is not None and hasattr(config, "use_cache"):
            config.use_cache = False


def _start_of(loaded: _Loaded) -> int:
    """A token that decoding may start from, to run the forward."""
    return next(_ids_of(loaded, "decoder_start_token_id", "bos_token_id", "eos_token_id"), 0)


def _ids_of(loaded: _Loaded, *names: str) -> Iterator[int]:
    """The ids that the files name, of the first name first; of several ids the first."""
    config = loaded.config
    places = (loaded.generation, config, *(config.get(name) for name in ("decoder", "text_config")))
    for name in names:
        for place in places:
            value = place.get(name) if isinstance(place, Mapping) else None
            value = value[0] if isinstance(value, list) and value else value
            if isinstance(value, int) and not isinstance(value, bool):
                yield value


def _generation(loaded: _Loaded, size: int) -> tuple[Generation, tuple[str, ...]]:
    """The decoding defaults, and remarks on what a bundle leaves to the caller."""
    given = {key: value for key, value in loaded.generation.items() if value is not None}
    given, notes = without_prefix(given, loaded.config)
    table = getattr(decoder_config(loaded.model.config), "max_position_embeddings", None)
    own = {
        **loaded.config, "vocab_size": size, "max_position_embeddings": table,
        "eos_token_id": next(_ids_of(loaded, "eos_token_id"), None),
    }  # fmt: skip
    start = next(_ids_of(loaded, "decoder_start_token_id"), None)
    if start is not None:
        given.setdefault("decoder_start_token_id", start)
    return read_generation(own, given), notes


def _special_ids(loaded: _Loaded, generation: Generation, size: int) -> SpecialIds:
    """The special ids of the decoder.

    Raises:
        ConfigError: the files name no end or start token, or one beyond the vocabulary.
    """
    start = generation.start_id
    eos = next(_ids_of(loaded, "eos_token_id"), None)
    problems = []
    if eos is None:
        problems.append("eos_token_id is missing: decoding would not end")
    if start is None:
        problems.append("decoder_start_token_id is missing, and bos_token_id too")
    pad = next(_ids_of(loaded, "pad_token_id"), eos)
    bos = next(_ids_of(loaded, "bos_token_id"), start)
    named = {"pad": pad, "bos": bos, "eos": eos, "decoder_start": start}
    problems += [
        f"{name}_token_id: {value} is not an id of the vocabulary (0 to {size - 1})"
        for name, value in named.items()
        if value is not None and not 0 <= value < size
    ]
    if problems:
        raise ConfigError(join_problems(loaded.name, problems, f"Set them in {GENERATION_FILE}."))
    assert pad is not None
    assert bos is not None
    assert eos is not None
    return SpecialIds(pad, bos, eos, start=start)
