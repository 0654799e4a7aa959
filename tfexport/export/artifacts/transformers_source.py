"""Models of transformers that no layout reads: loaded, and described as modules with a forward.

The class of the folder is the installed one; no code of a folder is run. Weights are read as those
of every checkpoint: safetensors, or pickles of plain tensors.
"""

import contextlib
import dataclasses
import inspect
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tfexport import graph_io
from tfexport.bundle import SpecialIds
from tfexport.errors import (
    CheckpointError,
    ConfigError,
    Message,
    Option,
    join_problems,
    join_some,
    missing_dependency,
    shown,
)
from tfexport.export.modules.inputs import Input, as_tensors, axes_of, draw_rows
from tfexport.export.quiet import quiet
from tfexport.export.text.model_tokenizers import InstalledTokenizer, find_installed_tokenizer
from tfexport.graph_io import BATCH
from tfexport.model_src.checkpoint.generation_config import (
    GENERATION_FILE,
    REMEDY,
    Generation,
    read_generation,
)
from tfexport.model_src.checkpoint.layouts import LAYOUTS
from tfexport.model_src.checkpoint.overrides import read_json
from tfexport.model_src.checkpoint.read_options import CheckpointLike
from tfexport.model_src.checkpoint.unsupported import describe_config, is_one_stack
from tfexport.model_src.checkpoint.weight_files import load_state_dict
from tfexport.module_rows import Array, stack_rows

_CONFIG = "config.json"
_MOST_TOKENS = 1024  # of a row, where a model has no limit or a larger one
_LONGEST_TRIED = 1 << 17  # values of an input of samples
# Keys of config.json for the positions of a decoder.
_POSITIONS = (
    "max_target_positions", "max_decoder_position_embeddings", "max_position_embeddings",
    "n_positions",
)  # fmt: skip


@dataclass(frozen=True)
class TransformersModel:
    """A model of transformers that is exported by its forward.

    Attributes:
        name: of the folder, or of the class.
        folder: with its files; None for a model in memory.
        model: in eval mode.
        inputs: that its encoder takes.
        special: the ids of its decoder.
        max_length: the most tokens of a row.
        generation: its decoding defaults.
        notes: remarks on what was read.
        examples: rows of the sizes that it takes, for inputs of which it refuses many.
        limits: axis to the largest size that the class computes as smaller ones.
        block: the source is padded to a multiple of it while it is exported, with its mask.
    """

    name: str
    folder: Path | None
    model: nn.Module
    inputs: tuple[Input, ...]
    special: SpecialIds
    max_length: int
    generation: Generation
    notes: tuple[str, ...] = ()
    examples: tuple[dict[str, Array], ...] = ()
    limits: Mapping[str, int] = field(default_factory=dict)
    block: int = 1

    def forward(self, model: Any, *tensors: Tensor) -> Tensor:
        """``forward(model, *inputs, target)`` to logits; see ``OwnForward``.

        Raises:
            ValueError: an input is beyond the model's limits.
        """
        *given, target = tensors
        named = {}
        for each, tensor in zip(self.inputs, given, strict=True):
            named[each.name] = self._padded(each, tensor)
        logits: Tensor = model(**named, decoder_input_ids=target, return_dict=True).logits
        return logits

    @property
    def parameters(self) -> int:
        """The number of trained values; tied tables are counted once."""
        return sum(each.numel() for each in self.model.parameters())

    @property
    def takes_ids(self) -> bool:
        """Whether its source is ids."""
        return self.inputs[0].name == graph_io.INPUT_IDS

    def find_tokenizer(self) -> InstalledTokenizer | None:
        """The tokenizer of its folder; None if there is none."""
        if self.folder is None:
            return None
        values = read_json(self.folder / _CONFIG)
        return find_installed_tokenizer(self.folder, values, _library(self.folder))

    def _padded(self, each: Input, tensor: Tensor) -> Tensor:
        """An input within its limits; padded to the blocks of the encoder while it is exported."""
        if torch.compiler.is_exporting():
            if self.block == 1:
                return tensor
            count = (tensor.size(1) + self.block - 1) // self.block
            rest = count * self.block - tensor.size(1)
            return F.pad(tensor, (0, rest), value=0)
        for axis, size in zip(each.axes, tensor.shape, strict=True):
            most = self.limits.get(str(axis), size)
            if size > most:
                raise ValueError(f"{size} is more than the {most} of {axis} that it takes")
        return tensor


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
    if not isinstance(kind, str) or any(each.recognises(values) for each in LAYOUTS.values()):
        return None
    return None if is_one_stack(values) else values


def _values_of(checkpoint: CheckpointLike) -> Mapping[str, Any]:
    """The values of the config.json of a checkpoint; none if it has no such file."""
    config = getattr(checkpoint, "config", None)
    if isinstance(checkpoint, nn.Module):
        return _written(config) if isinstance(getattr(config, "model_type", None), str) else {}
    if not isinstance(checkpoint, str | Path):
        return {}
    path = Path(checkpoint)
    file = path / _CONFIG if path.is_dir() else path.with_name(_CONFIG)
    return read_json(file) if file.is_file() and path.exists() else {}


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
    loaded = _of_module(checkpoint, values) if isinstance(checkpoint, nn.Module) else _load(
        Path(str(checkpoint)), values
    )  # fmt: skip
    model, name = loaded.model, loaded.name
    _without_cache(model)
    with torch.no_grad(), quiet():
        inputs = _Inputs(name, model).find()
        described = TransformersModel(
            name, loaded.folder, model, inputs, SpecialIds(0, 0, 0), 1, Generation(),
            limits=_limits(model), block=_block(model.config),
        )  # fmt: skip
        tried = _Tried(described, _start_of(loaded))
        examples = tried.examples()
        if loaded.missing:
            tried.refuse_missing(loaded.missing)
        size = tried.vocab_size()
        generation, notes = _generation(loaded, size)
        special = _special_ids(loaded, generation, size)
        max_length = tried.longest(settings.get("max_length"), generation)
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
        generation=dataclasses.replace(generation, defaults=defaults),
        notes=(*loaded.notes, *generation.notes, *notes), examples=examples,
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
    """A model in memory."""
    generation = getattr(model, "generation_config", None)
    found = {} if generation is None else _written(generation)
    kind = type(model)
    _require_pairs(kind.__name__, kind, model.config)
    return _Loaded(kind.__name__, None, model, values, found)


def _load(path: Path, values: Mapping[str, Any]) -> _Loaded:
    """The model of a folder, or of a file of weights in it."""
    transformers = _library(path)
    folder = path if path.is_dir() else path.parent
    if values.get("quantization_config") is not None:
        raise CheckpointError(
            f"{folder}: quantization_config: quantized weights are not read; pass the original "
            "model."
        )
    config, kind = _config(transformers, folder, values)
    state = load_state_dict(path)
    with quiet(), _without_logs(transformers):
        try:
            model, info = kind.from_pretrained(
                None, config=config, state_dict=dict(state.tensors), dtype=torch.float32,
                attn_implementation="eager", ignore_mismatched_sizes=True, output_loading_info=True,
            )  # fmt: skip
        except Exception as error:
            raise CheckpointError(
                f"{folder}: {kind.__name__} of transformers {transformers.__version__} cannot be "
                f"loaded: {_first_line(error)}."
            ) from error
    mismatched = [str(each[0]) for each in info.get("mismatched_keys", ())]
    if mismatched:
        raise CheckpointError(
            f"{folder}: {len(mismatched)} weights have other shapes than {kind.__name__} has by "
            f"{_CONFIG}: {join_some(sorted(mismatched))}."
        )
    unread = sorted(info.get("unexpected_keys", ()))
    notes = [f"{kind.__name__} has no place for {join_some(unread)}"] if unread else []
    file = folder / GENERATION_FILE
    generation = read_json(file) if file.is_file() else _written(model.generation_config)
    missing = tuple(sorted(info.get("missing_keys", ())))
    return _Loaded(
        str(path), folder, model.eval(), _written(model.config), generation, missing, tuple(notes)
    )


def _library(path: Path) -> Any:
    try:
        import transformers  # noqa: PLC0415 - optional, and slow to import
    except ImportError:
        raise missing_dependency(
            f"{path}: no layout reads this model, and its own forward is exported with the library "
            "transformers, which is not installed", "transformers",
        ) from None  # fmt: skip
    return transformers


def _config(transformers: Any, folder: Path, values: Mapping[str, Any]) -> tuple[Any, Any]:
    """The config of a folder and the class of its model, both of the installed library."""
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
            f"{folder / _CONFIG}: {version} cannot read it: {_first_line(error)}."
        ) from error
    named = values.get("architectures")
    name = named[0] if isinstance(named, list) and named else None
    found = getattr(transformers, name, None) if isinstance(name, str) else None
    if name is None:
        found = _usual_class(transformers, config)
    if not (inspect.isclass(found) and issubclass(found, transformers.PreTrainedModel)):
        raise CheckpointError(
            f"{folder}: {version} has no class {shown(name)} for its {_CONFIG} (model_type "
            f"{shown(kind)})."
        )
    _require_pairs(str(folder), found, config)
    return config, found


def _usual_class(transformers: Any, config: Any) -> Any:
    """The class that generates with a config, where the folder names none."""
    for name in ("Seq2SeqLM", "SpeechSeq2Seq", "ImageTextToText"):
        mapping = getattr(transformers, f"AutoModelFor{name}")._model_mapping
        if type(config) in mapping:
            return mapping[type(config)]
    return None


def _require_pairs(subject: str, kind: Any, config: Any) -> None:
    """Refuse a class that is no encoder-decoder with logits."""
    takes = inspect.signature(kind.forward).parameters
    pairs = getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in takes
    can = getattr(kind, "can_generate", lambda: False)
    if not pairs or not can():
        reason = "gives no logits of a next token" if pairs else "has no encoder and decoder"
        raise CheckpointError(f"{subject}: holds a {kind.__name__}, which {reason}.")


def _written(config: Any) -> dict[str, Any]:
    """The values that transformers writes to a file."""
    values: dict[str, Any] = json.loads(config.to_json_string())
    return values


def _first_line(error: Exception) -> str:
    text = str(error) or type(error).__name__
    return text.splitlines()[0][:200].rstrip(". ")


def _without_cache(model: nn.Module) -> None:
    """Have the forward compute all rows, and keep none."""
    for part in model.modules():
        config = getattr(part, "config", None)
        if config is not None and hasattr(config, "use_cache"):
            config.use_cache = False


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


def _of_encoder(config: Any) -> Any:
    """The config of the encoder, which may be the model's."""
    names = ("encoder", "vision_config", "audio_config")
    return next((found for name in names if (found := getattr(config, name, None))), config)


def _of_decoder(config: Any) -> Any:
    """The config of the decoder, which may be the model's."""
    names = ("decoder", "text_config")
    return next((found for name in names if (found := getattr(config, name, None))), config)


@dataclass(frozen=True)
class _Inputs:
    """Finds the inputs of a model."""

    name: str
    model: Any

    def find(self) -> tuple[Input, ...]:
        """The inputs of the encoder, as the graphs take them."""
        main = self.model.main_input_name
        if main == "inputs":
            main = self.model.encoder.main_input_name
        kinds: Mapping[str, Callable[[Any], tuple[Input, ...]]] = {
            graph_io.INPUT_IDS: self._ids,
            "input_features": self._features,
            "input_values": self._samples,
            "pixel_values": self._pixels,
            "flattened_patches": self._patches,
        }
        found = kinds[main](_of_encoder(self.model.config)) if main in kinds else ()
        if not found:
            raise ConfigError(
                f"{self.name}: {type(self.model).__name__} reads {main} of a form that is not "
                f"known; known are {', '.join(kinds)}."
            )
        return found

    def _ids(self, config: Any) -> tuple[Input, ...]:
        axes = (BATCH, graph_io.SOURCE)
        table = self.model.get_encoder().get_input_embeddings()
        ids = Input(graph_io.INPUT_IDS, "int64", axes, below=table.weight.size(0))
        return ids, Input(graph_io.ATTENTION_MASK, "int64", axes)

    def _features(self, config: Any) -> tuple[Input, ...]:
        bins = getattr(config, "num_mel_bins", None)
        if bins is not None:  # of which the convolutions halve the frames once
            frames = 2 * config.max_source_positions
            return (Input("input_features", "float32", (BATCH, bins, frames)),)
        size = getattr(config, "feature_projection_input_dim", None)
        if hasattr(config, "input_feat_per_channel"):
            size = config.input_feat_per_channel * config.input_channels
        return (Input("input_features", "float32", (BATCH, "frames", size)),) if size else ()

    def _samples(self, config: Any) -> tuple[Input, ...]:
        return (Input("input_values", "float32", (BATCH, "samples")),)

    def _pixels(self, config: Any) -> tuple[Input, ...]:
        size: Any = getattr(config, "image_size", None)
        channels: Any = getattr(config, "num_channels", None)
        height, width = size if isinstance(size, list | tuple) else (size, size)
        if None in (height, width, channels):
            return ()
        return (Input("pixel_values", "float32", (BATCH, channels, height, width)),)

    def _patches(self, config: Any) -> tuple[Input, ...]:
        axes = (BATCH, "patches")
        # A patch begins with the numbers of its row and its column, which are drawn below this.
        most = min(config.seq_len, 4)
        size = config.patch_embed_hidden_size + 2
        patches = Input("flattened_patches", "float32", (*axes, size), below=most)
        return patches, Input(graph_io.ATTENTION_MASK, "int64", axes)


def _limits(model: Any) -> dict[str, int]:
    """Sizes beyond which a class takes another branch, for which there is another graph."""
    config = model.config
    if config.model_type == "speech_to_text":  # a larger table of positions is made then
        return {"frames": config.max_source_positions * 2**config.num_conv_layers}
    if config.model_type == "nllb-moe":
        return {graph_io.SOURCE: config.max_position_embeddings}
    if config.model_type == "bigbird_pegasus" and config.attention_type == "block_sparse":
        # Shorter ones are attended to as a whole; random blocks are for longer ones.
        model.get_encoder().set_attention_type("original_full")
        return {graph_io.SOURCE: (5 + 2 * config.num_random_blocks) * config.block_size}
    return {}


def _block(config: Any) -> int:
    """Of an encoder that attends by blocks, to a multiple of which it pads by itself."""
    if config.model_type == "longt5":
        return math.lcm(config.local_radius + 1, config.global_block_size)
    return int(config.block_size) if config.model_type == "pegasus_x" else 1


@dataclass(frozen=True)
class _Tried:
    """Runs of a model's forward with drawn inputs."""

    found: TransformersModel
    start: int

    def logits(self, sizes: Mapping[str, int], length: int = 2) -> Tensor:
        """Logits (1, T, V) of one row; raises what the forward raises."""
        inputs = self.found.inputs
        below = {each.name: each.below for each in inputs if each.below is not None}
        rows = draw_rows(inputs, below, dict(sizes), 1)
        target = torch.full((1, length), self.start)
        return self.found.forward(self.found.model, *as_tensors(inputs, stack_rows(rows)), target)

    def runs(self, sizes: Mapping[str, int], length: int = 2) -> bool:
        """Whether the forward takes a size."""
        try:
            self.logits(sizes, length)
        except Exception:
            return False
        return True

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The smallest powers of two that the forward takes.

        Raises:
            CheckpointError: it takes none.
        """
        axes, size = axes_of(self.found.inputs), 8
        grows = axes == ("samples",)  # of which convolutions make few rows
        while not self.runs(dict.fromkeys(axes, size)):
            size *= 2
            if not grows or size > _LONGEST_TRIED:
                self._refuse(dict.fromkeys(axes, 8))
        return dict.fromkeys(axes, size)

    def _refuse(self, sizes: Mapping[str, int]) -> None:
        try:
            self.logits(sizes)
        except Exception as error:
            kind = type(self.found.model).__name__
            raise CheckpointError(
                f"{self.found.name}: the forward of {kind} fails: {_first_line(error)}."
            ) from error

    def vocab_size(self) -> int:
        """V."""
        return self.logits(self.sizes).size(-1)

    def examples(self) -> tuple[dict[str, Array], ...]:
        """Rows of sizes that the forward takes, and of padded patches."""
        inputs = self.found.inputs
        below = {each.name: each.below for each in inputs if each.below is not None}
        if inputs[0].name == "input_values":
            least = self.sizes["samples"]
            lengths = (2 * least, 3 * least + 1, 4 * least + 7, 5 * least + 2)
            return tuple(draw_rows(inputs, below, {"samples": n}, 1)[0] for n in lengths)
        if inputs[0].name == "flattened_patches":
            (row,) = draw_rows(inputs, below, {"patches": 9}, 1, seed=3)
            for array in row.values():
                array[-3:] = 0
            return (row,)
        return ()

    def refuse_missing(self, names: Sequence[str]) -> None:
        """Refuse weights that no file has, if the logits depend on them.

        Raises:
            CheckpointError: they do; all are listed.
        """
        parameters = dict(self.found.model.named_parameters())
        needed = []
        for name in names:
            held = parameters.get(name)
            if held is None:
                continue
            held.fill_(math.nan)
            needed += [name] if not torch.isfinite(self.logits(self.sizes)).all() else []
            held.zero_()
        if needed:
            raise CheckpointError(
                f"{self.found.name}: {len(needed)} weights of {type(self.found.model).__name__} "
                f"are missing: {join_some(needed)}."
            )

    def longest(self, asked: int | None, generation: Generation) -> int:
        """The most tokens that a row may have.

        Args:
            asked: by the caller.
            generation: the decoding defaults, with a length that is kept where it can be.

        Raises:
            ConfigError: the model cannot decode as many as the caller asks for.
        """
        config = _of_decoder(self.found.model.config)
        tables = (getattr(config, name, None) for name in _POSITIONS)
        table = next((each for each in tables if isinstance(each, int)), None)
        most = max(_MOST_TOKENS, int(generation.defaults["max_length"]))
        if table is not None:
            most = min(most, table)
        if asked is not None:
            if not self.runs(self.sizes, asked):
                text = f" is more than {self.found.name} can decode."
                raise ConfigError(Message(Option("settings", [f"max_length={asked}"]), text))
            return asked
        low, high = 1, most + 1  # the largest of which it runs
        while high - low > 1:
            middle = most if high > most else (low + high) // 2
            low, high = (middle, high) if self.runs(self.sizes, middle) else (low, middle)
        return low


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


# Keys of Whisper's generation_config.json, which its own ``generate`` makes a prefix of.
_OF_PREFIX = (
    "lang_to_id", "task_to_id", "language", "task", "is_multilingual", "forced_decoder_ids",
)  # fmt: skip
_NO_TIMESTAMPS = "no_timestamps_token_id"
# Those that change no token without timestamps, and of words' times.
_OF_TIMESTAMPS = (
    "max_initial_timestamp_index", "alignment_heads", "median_filter_width", "prev_sot_token_id",
    "return_timestamps", "return_segments",
)  # fmt: skip


def _generation(loaded: _Loaded, size: int) -> tuple[Generation, tuple[str, ...]]:
    """The decoding defaults, and remarks on what a bundle leaves to the caller."""
    given = {key: value for key, value in loaded.generation.items() if value is not None}
    given, notes = _without_prefix(given)
    table = getattr(_of_decoder(loaded.model.config), "max_position_embeddings", None)
    own = {
        **loaded.config, "vocab_size": size, "max_position_embeddings": table,
        "eos_token_id": next(_ids_of(loaded, "eos_token_id"), None),
    }  # fmt: skip
    start = next(_ids_of(loaded, "decoder_start_token_id"), None)
    if start is not None:
        given.setdefault("decoder_start_token_id", start)
    return read_generation(own, given), notes


def _without_prefix(given: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The generation settings of Whisper without those that its own ``generate`` reads."""
    last = given.get(_NO_TIMESTAMPS)
    if not isinstance(last, int):
        return {**given}, ()
    read = (_NO_TIMESTAMPS, *_OF_PREFIX, *_OF_TIMESTAMPS)
    kept = {key: value for key, value in given.items() if key not in read}
    languages, tasks = given.get("lang_to_id"), given.get("task_to_id")
    if given.get("return_timestamps") is True:
        raise ConfigError(
            f"{GENERATION_FILE}: return_timestamps: true is not supported: there is no rule for "
            f"the order of timestamps. {REMEDY}"
        )
    if not languages or not isinstance(languages, Mapping):
        return {**kept, "forced_bos_token_id": last}, ()
    code, number = next(iter(languages.items()))
    task = next(iter(tasks.values())) if isinstance(tasks, Mapping) and tasks else None
    prefix = [each for each in (number, task, last) if each is not None]
    return kept, (
        "transformers' generate starts a row with tokens for its language, which it detects, its "
        f"task and no timestamps; a bundle takes them as target_prefix, such as {prefix} for "
        f"{code}",
    )


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
