"""The class of transformers that a folder's config.json names, with the folder's weights.

It is the original of every Hugging Face folder, and judges its export. No code of a folder is run.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from tfexport.errors import CheckpointError, join_some, missing_dependency, shown
from tfexport.export.quiet import quiet
from tfexport.export.reference.own_code import probe_inputs
from tfexport.model_src.checkpoint.checkpoint import Checkpoint
from tfexport.model_src.checkpoint.layouts import LAYOUTS
from tfexport.model_src.checkpoint.overrides import SETTINGS
from tfexport.model_src.checkpoint.unsupported import describe_config

CONFIG = "config.json"
# Settings that change no logits of given ids; positions may depend on the padding's.
_OF_TOKENS = frozenset({
    "bos_id", "eos_id", "unk_id", "start_id", "add_source_bos", "add_source_eos",
})  # fmt: skip


@dataclass(frozen=True)
class LibraryModel:
    """A model of transformers.

    Attributes:
        model: in eval mode, in float32, with eager attention.
        missing: names of parameters that no file has; their values are drawn.
        unread: names of tensors that the class has no place for.
    """

    model: Any
    missing: tuple[str, ...]
    unread: tuple[str, ...]


def first_line(error: Exception) -> str:
    """The beginning of an error of another library, for a message."""
    text = str(error) or type(error).__name__
    return text.splitlines()[0][:200].rstrip(". ")


def import_transformers() -> ModuleType | None:
    """The library; None if it is not installed."""
    try:
        import transformers  # noqa: PLC0415 - optional, and slow to import
    except ImportError:
        return None
    module: ModuleType = transformers
    return module


def find_class(transformers: Any, folder: Path, values: Mapping[str, Any]) -> tuple[Any, Any]:
    """The config of a folder and the class of its model, both of the installed library.

    Args:
        transformers: the library.
        folder: with a config.json.
        values: of it.

    Raises:
        CheckpointError: the library has no such class, or cannot read the config.
    """
    kind, known = values["model_type"], transformers.CONFIG_MAPPING
    version = f"transformers {transformers.__version__}"
    if kind not in known:
        text = describe_config(values)
        raise CheckpointError(f"{folder}: holds {text} {version} has no model_type {shown(kind)}.")
    try:
        with _without_logs(transformers):
            config = known[kind].from_pretrained(folder, local_files_only=True)
    except Exception as error:
        raise CheckpointError(
            f"{folder / CONFIG}: {version} cannot read it: {first_line(error)}."
        ) from error
    named = values.get("architectures")
    name = named[0] if isinstance(named, list) and named else None
    found = getattr(transformers, name, None) if isinstance(name, str) else None
    if name is None:
        found = _usual_class(transformers, config)
    if not (inspect.isclass(found) and issubclass(found, transformers.PreTrainedModel)):
        raise CheckpointError(
            f"{folder}: {version} has no class {shown(name)} for its {CONFIG} (model_type "
            f"{shown(kind)})."
        )
    return config, found


def _usual_class(transformers: Any, config: Any) -> Any:
    """The class that generates with a config, where the folder names none."""
    for name in ("Seq2SeqLM", "SpeechSeq2Seq", "ImageTextToText"):
        mapping = getattr(transformers, f"AutoModelFor{name}")._model_mapping
        if type(config) in mapping:
            return mapping[type(config)]
    return None


def load_class(
    transformers: Any, folder: Path, kind: Any, config: Any, tensors: Mapping[str, Tensor]
) -> LibraryModel:
    """Build a class of the library with the tensors of a folder.

    Raises:
        CheckpointError: it cannot be built, or tensors have other shapes.
    """
    with quiet(), _without_logs(transformers):
        try:
            model, info = kind.from_pretrained(
                None, config=config, state_dict=dict(tensors), dtype=torch.float32,
                attn_implementation="eager", ignore_mismatched_sizes=True, output_loading_info=True,
            )  # fmt: skip
        except Exception as error:
            raise CheckpointError(
                f"{folder}: {kind.__name__} of transformers {transformers.__version__} cannot be "
                f"loaded: {first_line(error)}."
            ) from error
    mismatched = [str(each[0]) for each in info.get("mismatched_keys", ())]
    if mismatched:
        raise CheckpointError(
            f"{folder}: {len(mismatched)} weights have other shapes than {kind.__name__} has by "
            f"{CONFIG}: {join_some(sorted(mismatched))}."
        )
    missing, unread = (
        tuple(sorted(info.get(name, ()))) for name in ("missing_keys", "unexpected_keys")
    )
    return LibraryModel(model.eval(), missing, unread)


@contextlib.contextmanager
def _without_logs(transformers: Any) -> Iterator[None]:
    """Silence what transformers logs, and its bars."""
    logging = transformers.utils.logging
    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()


class ClassReference:
    """A class of transformers as the reference of a checkpoint; see ``Reference``."""

    no_original: str | None = None

    def __init__(self, model: Any, version: str) -> None:
        self.title = f"{type(model).__name__} of transformers {version}"
        self._model = model

    @torch.no_grad()
    def encode(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """See ``Reference``."""
        encoder = self._model.get_encoder()
        output = encoder(input_ids, attention_mask=attention_mask)
        states: Tensor = output.last_hidden_state
        return states

    @torch.no_grad()
    def decode(
        self,
        hidden: Tensor,
        attention_mask: Tensor,
        decoder_input_ids: Tensor,
        last_only: bool = False,
    ) -> Tensor:
        """See ``Reference``."""
        logits: Tensor = self._model(
            encoder_outputs=(hidden,), attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids, use_cache=False,
        ).logits  # fmt: skip
        return logits[:, -1:] if last_only else logits


def find_class_reference(checkpoint: Checkpoint) -> ClassReference | str:
    """The class of a Hugging Face folder as its judge, or why there is none; "" for other files."""
    values = checkpoint.own_config
    layout = LAYOUTS.get(checkpoint.layout)
    if checkpoint.path is None or layout is None or layout.generation is None or not values:
        return ""
    keys = [
        key
        for key, origin in checkpoint.origins.items()
        if origin == SETTINGS and key not in _OF_TOKENS
    ]
    if keys:
        return f"its config was changed: {join_some(keys)}"
    transformers = import_transformers()
    if transformers is None:
        named = values.get("architectures") or ["the original"]
        need = f"{named[0]} was not run, as transformers is not installed"
        return str(missing_dependency(need, "transformers"))
    if values["model_type"] not in transformers.CONFIG_MAPPING:
        named = shown(values["model_type"])
        return f"transformers {transformers.__version__} has no model_type {named}"
    folder = checkpoint.path.parent
    try:
        config, kind = find_class(transformers, folder, values)
        config.return_dict = True
        if not issubclass(kind, transformers.GenerationMixin):  # it gives states, such as BartModel
            kind = _usual_class(transformers, config) or kind
        loaded = load_class(transformers, folder, kind, config, checkpoint.state_dict)
    except CheckpointError as error:
        return str(error).rstrip(".")
    if loaded.missing:
        return f"{kind.__name__} finds no {join_some(loaded.missing)} in the file"
    reference = ClassReference(loaded.model, transformers.__version__)
    source, target = probe_inputs(checkpoint.config)
    try:
        mask = torch.ones_like(source)
        shape = reference.decode(reference.encode(source, mask), mask, target).shape
    except Exception as error:  # a class may be of any kind, and its code raise anything
        return f"{reference.title} fails: {first_line(error)}"
    wanted = (*target.shape, checkpoint.config.target_vocab_size)
    if shape != wanted:
        return f"{reference.title} gives logits of shape {tuple(shape)}; expected {wanted}"
    return reference
