"""How a model of transformers is called, and what running its forward shows.

Axes: B batch, T target, V vocabulary.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tfexport import graph_io
from tfexport.bundle import SpecialIds
from tfexport.errors import CheckpointError, ConfigError, Message, Option, join_some
from tfexport.export.modules.inputs import Input, as_tensors, axes_of, draw_rows
from tfexport.export.reference.library_class import first_line
from tfexport.graph_io import BATCH
from tfexport.model_src.checkpoint.generation_config import Generation
from tfexport.module_rows import Array, stack_rows

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
        encodes_once: the forward gives the same with the encoder's results of an earlier call.
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
    encodes_once: bool = False

    def __call__(self, model: Any, *tensors: Tensor) -> Tensor:
        """``forward(model, *inputs, target)`` to logits; see ``OwnForward``.

        Raises:
            ValueError: an input is beyond the model's limits.
        """
        *given, target = tensors
        logits: Tensor = model(
            **self._named(given), decoder_input_ids=target, return_dict=True
        ).logits
        return logits

    def of_source(self, model: Any, *inputs: Tensor) -> Callable[[Tensor], Tensor]:
        """The forward of one source; its encoder runs once if the class can do that.

        Raises:
            ValueError: an input is beyond the model's limits.
        """
        if not self.encodes_once:
            return lambda target: self(model, *inputs, target)
        named = self._named(inputs)
        encoded = model.get_encoder()(**named, return_dict=True)

        def forward(target: Tensor) -> Tensor:
            logits: Tensor = model(
                **named, encoder_outputs=encoded, decoder_input_ids=target, return_dict=True
            ).logits
            return logits

        return forward

    def cross_attentions(self, model: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Weights of cross-attention, (B, H, T, S) for each layer, of inputs and target.

        Raises:
            ValueError: the class gives none.
        """
        *given, target = tensors
        own = model.config._attn_implementation
        model.set_attn_implementation("eager")  # others give no weights
        try:
            weights = model(
                **self._named(given), decoder_input_ids=target, output_attentions=True,
                return_dict=True,
            ).cross_attentions  # fmt: skip
        finally:
            model.set_attn_implementation(own)
        if not weights:
            raise ValueError(f"{type(model).__name__} gives no weights of cross-attention")
        return tuple(weights)

    def _named(self, inputs: Sequence[Tensor]) -> dict[str, Tensor]:
        """The inputs by their names."""
        return {
            each.name: self._padded(each, tensor)
            for each, tensor in zip(self.inputs, inputs, strict=True)
        }

    @property
    def parameters(self) -> int:
        """The number of trained values; tied tables are counted once."""
        return sum(each.numel() for each in self.model.parameters())

    @property
    def takes_ids(self) -> bool:
        """Whether its source is ids."""
        return self.inputs[0].name == graph_io.INPUT_IDS

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


def _of_encoder(config: Any) -> Any:
    """The config of the encoder, which may be the model's."""
    names = ("encoder", "vision_config", "audio_config")
    return next((found for name in names if (found := getattr(config, name, None))), config)


def decoder_config(config: Any) -> Any:
    """The config of the decoder, which may be the model's."""
    names = ("decoder", "text_config")
    return next((found for name in names if (found := getattr(config, name, None))), config)


@dataclass(frozen=True)
class Inputs:
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


def size_limits(model: Any) -> dict[str, int]:
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


def block_size_of(config: Any) -> int:
    """Of an encoder that attends by blocks, to a multiple of which it pads by itself.

    Raises:
        ConfigError: the class finds a token's block by rounding, which differs elsewhere.
    """
    if config.model_type == "longt5":
        size = config.global_block_size
        if config.encoder_attention_type == "transient-global" and size & (size - 1):
            raise ConfigError(
                f"config.json: global_block_size {size} is not a power of two: the class adds up "
                f"1/{size} for every token to find its block, and the sums are rounded in another "
                "order in onnxruntime."
            )
        return math.lcm(config.local_radius + 1, config.global_block_size)
    return int(config.block_size) if config.model_type == "pegasus_x" else 1


@dataclass(frozen=True)
class Runs:
    """Runs of a model's forward with drawn inputs."""

    found: TransformersModel
    start: int

    def logits(self, sizes: Mapping[str, int], length: int = 2) -> Tensor:
        """Logits (1, T, V) of one row; raises what the forward raises."""
        inputs = self.found.inputs
        below = {each.name: each.below for each in inputs if each.below is not None}
        rows = draw_rows(inputs, below, dict(sizes), 1)
        target = torch.full((1, length), self.start)
        return self.found(self.found.model, *as_tensors(inputs, stack_rows(rows)), target)

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
                f"{self.found.name}: the forward of {kind} fails: {first_line(error)}."
            ) from error

    def vocab_size(self) -> int:
        """V."""
        return self.logits(self.sizes).size(-1)

    def encodes_once(self) -> bool:
        """Whether the forward gives the same logits with what its encoder gave before."""
        inputs, once = self.found.inputs, replace(self.found, encodes_once=True)
        below = {each.name: each.below for each in inputs if each.below is not None}
        given = as_tensors(inputs, stack_rows(draw_rows(inputs, below, self.sizes, 2)))
        target = torch.full((2, 3), self.start)
        try:
            found = once.of_source(self.found.model, *given)(target)
        except Exception:  # the class has no such arguments
            return False
        return torch.equal(found, self.found(self.found.model, *given, target))

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
        config = decoder_config(self.found.model.config)
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
