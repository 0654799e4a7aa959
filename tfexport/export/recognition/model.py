"""A config and weights from the stacks of a program.

Axes: B batch, S source, T target, V vocabulary.
"""

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, fx

from tfexport.bundle import SpecialIds
from tfexport.export.incremental.forward_capture import TARGET
from tfexport.export.incremental.program import FIRST, Example, Program
from tfexport.export.incremental.program_values import ProgramValues
from tfexport.export.operators import (
    CONSTANT_COPIES,
    EQUALITIES,
    LOG_SOFTMAX,
    REARRANGED,
    SHAPES,
    aten,
)
from tfexport.export.recognition.attention import MOST_DISTANCE, RecognisedAttention
from tfexport.export.recognition.dataflow import (
    MOST_POSITIONS,
    Dataflow,
    NotRecognisedError,
)
from tfexport.export.recognition.stacks import (
    RecognisedEmbedding,
    Stack,
    StackReader,
    Sublayer,
)
from tfexport.export.recognition.sublayers import Norm, RecognisedFeedForward, find_norms
from tfexport.graph_io import ATTENTION_MASK
from tfexport.model_src.config import TransformerConfig
from tfexport.model_src.relative import bucket_lookup

_Layers: TypeAlias = "Sequence[dict[str, Sublayer]]"


@dataclass(frozen=True)
class Recognised:
    """A model that computes what a forward does.

    Attributes:
        config: its config.
        state_dict: its weights, by the names of ``Transformer``.
    """

    config: TransformerConfig
    state_dict: dict[str, Tensor]


def recognise_model(program: Program, ids: SpecialIds, max_length: int) -> Recognised:
    """Recognise a Transformer in a program.

    Args:
        program: of a forward whose first input has the source's ids.
        ids: of the vocabularies.
        max_length: tokens that it has to decode.

    Raises:
        NotRecognisedError: naming the first operator that is none of the known forms, and its line.
    """
    with torch.no_grad():
        return _ModelReader(program, ids, max_length).read()


class _ModelReader:
    def __init__(self, program: Program, ids: SpecialIds, max_length: int) -> None:
        self.program, self.ids, self.max_length = program, ids, max_length
        given = program.own.batch_first
        takes_ids = given[0].dtype in ("int64", "int32") and len(given[0].axes) == 2
        if not takes_ids or any(each.name != ATTENTION_MASK for each in given[1:]):
            names = ", ".join(each.name for each in given)
            raise NotRecognisedError(
                f"the inputs ({names}) are not ids and at most {ATTENTION_MASK}"
            )
        self.bounds = program.largest_sizes()
        self.source_axis = str(given[0].axes[1])
        for node in (program.inputs[0], program.target):
            check_ids(program, node, ids.pad)
        values_at = functools.cache(self._values_at)
        values = program.run(self._example(None))
        self.decoder = Dataflow(program, values, values_at, decoder=True)
        self.encoder = Dataflow(program, values, values_at, decoder=False)
        for flow in (self.encoder, self.decoder):
            flow.norms = find_norms(flow)

    def read(self) -> Recognised:
        end, output = read_output(self.decoder)
        decoder = StackReader(self.decoder, self.encoder).read(end)
        memories = {
            self.encoder.peeled(each.inner.memory)
            for each in decoder.sublayers
            if isinstance(each.inner, RecognisedAttention)
            and each.inner.memory not in self.decoder.side
        }
        if len(memories) != 1:
            raise NotRecognisedError(
                f"the decoder attends to {len(memories)} tensors of the encoder"
            )
        encoder = StackReader(self.encoder).read(memories.pop())
        shapes = {tuple(each.shape) for each in self.program.tensors.values() if each.dim() == 2}
        assembler = ModelAssembler(
            (encoder, decoder), output, shapes, self.bounds.get(self.source_axis)
        )
        return assembler.build(self.ids, self.max_length)

    def _example(self, length: int | None) -> Example:
        """Ids without padding, with nothing masked; of a length, or as the program was exported."""
        of = self.program.examples[FIRST]
        inputs, sizes = [], {}
        if length is not None:
            sizes = {axis: min(length, self.bounds.get(axis, length))
                     for axis in (self.source_axis, TARGET)}  # fmt: skip
        for each, tensor in zip(self.program.own.batch_first, of.inputs, strict=True):
            if each.name == ATTENTION_MASK:
                value = torch.ones_like(tensor)
            else:
                other = 0 if self.ids.pad != 0 else 1
                value = tensor.masked_fill(tensor == self.ids.pad, other)
            inputs.append(repeated(value, sizes[self.source_axis]) if sizes else value)
        target = repeated(of.target, sizes[TARGET]) if sizes else of.target
        return Example(tuple(inputs), target)

    def _values_at(self, length: int) -> ProgramValues:
        """Values for one row of a length, or of the largest that a side may have."""
        return self.program.values(self._example(length))


def read_output(flow: Dataflow) -> tuple[fx.Node, tuple[Tensor, Tensor]]:
    """The last tensor of the decoder, and the output projection."""
    program, node = flow.program, flow.program.logits
    while node in flow.side and node.target not in LOG_SOFTMAX and flow.is_linear(node):
        if node.target in (aten.linear.default, aten.matmul.default):
            break
        (node,) = flow.before(node)
    node = flow.before(node)[0] if node.target in LOG_SOFTMAX else program.logits
    ends = flow.leaves(node)
    if len(ends) != 1:
        raise NotRecognisedError(f"{program.line_of(node)}: logits of several tensors")
    of = flow.linear(ends[0], node)
    like = flow.values[node]
    batch, length = flow.canonical(ends[0]).shape[:2]
    numbers = torch.arange(like.numel())
    indices = []
    for place in flow.places(ends[0]):
        at = numbers[flow.reached(of, place).flatten()]
        indices.append(at)
    if len({len(each) for each in indices}) != 1 or len(indices[0]) * batch * length != len(
        numbers
    ):
        raise NotRecognisedError(f"{program.line_of(node)}: logits of several positions")
    return ends[0], flow.read(of, indices)


def check_ids(program: Program, ids: fx.Node, pad_id: int | None) -> None:
    """Check that ids are embedded and compared with that of padding, if any, and nothing else.

    Raises:
        NotRecognisedError: naming the operator; other ids would have a meaning of their own.
    """
    waiting, seen = [ids], set[fx.Node]()
    while waiting:
        node = waiting.pop()
        for user in node.users:
            args: Any = user.args
            if user in seen or user.target in SHAPES:
                continue
            seen.add(user)
            if user.target in REARRANGED:
                waiting.append(user)
            elif user.target is aten.embedding.default and args[1] is node:
                continue
            elif user.target in EQUALITIES and args[0] is node:
                other: Any = args[1]
                while isinstance(other, fx.Node) and other.target in CONSTANT_COPIES:
                    other = other.args[0]
                held = program.tensors.get(other) if isinstance(other, fx.Node) else None
                value = other if held is None else held.item() if held.numel() == 1 else None
                if pad_id is None or value != pad_id:
                    raise NotRecognisedError(f"{program.line_of(user)}: an id of its own meaning")
            else:
                raise NotRecognisedError(f"{program.line_of(user)}: ids that are not embedded")


def repeated(tensor: Tensor, length: int) -> Tensor:
    """The first row, of another length."""
    times = math.ceil(length / tensor.shape[1])
    return tensor[:1].repeat(1, times)[:, :length].contiguous()


class ModelAssembler:
    """Gives settings and names to what was found."""

    def __init__(
        self,
        stacks: tuple[Stack, Stack],
        output: tuple[Tensor, Tensor],
        shapes: Iterable[tuple[int, ...]],
        longest: int | None,
    ) -> None:
        """Take encoder and decoder, and the output projection.

        Args:
            stacks: encoder and decoder.
            output: matrix and bias of the output projection.
            shapes: of all matrices and tables.
            longest: the largest length of a source; None if there is no limit.
        """
        (self.encoder, self.decoder), self.shapes, self.longest = stacks, shapes, longest
        self.weight, self.bias = output
        self.state: dict[str, Tensor] = {}

    def build(self, ids: SpecialIds, max_length: int) -> Recognised:
        """The config, and the weights by their names."""
        of_encoder = _layers(self.encoder, ("self", "feed_forward"))
        of_decoder = _layers(self.decoder, ("self", "cross", "feed_forward"))
        norms = [*_norms(self.encoder), *_norms(self.decoder)]
        kind = _one((norm.kind for norm in norms), "kinds of norms")
        scales = self._scales()
        source, target = self.encoder.embedding, self.decoder.embedding
        if not scales["scale_embeddings"]:
            source = replace(source, table=source.table * source.scale)
        if not scales.get("scale_target_embeddings"):
            target = replace(target, table=target.table * target.scale)
        rows = self._rows(max_length)
        biases = self._biases()
        every = (*self.encoder.sublayers, *self.decoder.sublayers)
        config = TransformerConfig(
            d_model=self.weight.shape[1],
            num_encoder_layers=len(of_encoder), num_decoder_layers=len(of_decoder),
            source_vocab_size=len(source.table), target_vocab_size=len(target.table),
            norm=kind, norm_eps=_one((norm.eps for norm in norms), "epsilons of norms"),
            norm_bias=kind != "rms" and any(norm.bias is not None for norm in norms),
            encoder_final_norm=self.encoder.final_norm is not None,
            decoder_final_norm=self.decoder.final_norm is not None,
            attention_bias=biases["attention"], feed_forward_bias=biases["feed_forward"],
            output_bias=bool(self.bias.any()), tie_embeddings=_equal(source.table, target.table),
            tie_output=_equal(self.weight, target.table),
            positions="none" if rows is None else "learned",
            max_positions=rows or max_length,
            source_embedding_norm=_embedding_norm(source),
            target_embedding_norm=_embedding_norm(target),
            residual_scale=_one((each.factor for each in every), "factors of the stream"),
            dropout=0.0, pad_id=ids.pad, bos_id=ids.bos, eos_id=ids.eos, unk_id=ids.unk,
            start_id=ids.start, **self._sizes(of_encoder, of_decoder),
            **scales, **self._relative(of_encoder, of_decoder),
        )  # fmt: skip
        self._embedding("source_embedding", source, config)
        self._embedding("target_embedding", target, config)
        self._name(config, of_encoder, of_decoder)
        return Recognised(config, self.state)

    def build_encoder(self) -> tuple[TransformerConfig, dict[str, Tensor]]:
        """See ``name_layers``."""
        layers, norms = _layers(self.encoder, ("self", "feed_forward")), [*_norms(self.encoder)]
        kind = _one((norm.kind for norm in norms), "kinds of norms")
        biases, sizes = self._biases(), _sizes(layers)
        width, attention = len(norms[0].weight), _attention(layers[0]["self"])
        if attention.query[0].shape[1] != width:
            raise NotRecognisedError(f"{layers[0]['self'].line}: a norm of another width")
        config = TransformerConfig(
            d_model=width, num_encoder_layers=len(layers), num_decoder_layers=1,
            source_vocab_size=None, target_vocab_size=None,
            num_heads=sizes.heads, head_dim=sizes.width // sizes.heads, d_ff=sizes.d_ff,
            activation=cast("Any", sizes.activation), gated_feed_forward=sizes.gated,
            norm=kind, norm_eps=_one((norm.eps for norm in norms), "epsilons of norms"),
            norm_bias=kind != "rms" and any(norm.bias is not None for norm in norms),
            norm_placement=_placement(self.encoder), decoder_norm_placement="same",
            encoder_final_norm=self.encoder.final_norm is not None,
            attention_bias=biases["attention"], feed_forward_bias=biases["feed_forward"],
            residual_scale=_one((each.factor for each in self.encoder.sublayers),
                                "factors of the stream"),
            tie_embeddings=False, tie_output=False, positions="none", max_positions=1, dropout=0.0,
        )  # fmt: skip
        self._name_side("encoder", layers, self.encoder, config)
        return config, self.state

    def _rows(self, max_length: int) -> int | None:
        """The rows of both tables of positions, and so the limit of a source; None for none."""
        of_source, of_target = self.encoder.embedding.positions, self.decoder.embedding.positions
        if of_target is not None and len(of_target) < max_length:
            raise NotRecognisedError(f"positions of {len(of_target)} tokens, of {max_length}")
        limits = [self.longest] if self.longest is not None else []
        limits += [] if of_source is None else [len(of_source)]
        if not limits:
            return None if of_target is None else max(MOST_POSITIONS, len(of_target))
        if min(limits) < max_length:
            raise NotRecognisedError(f"a source of {min(limits)} ids, and {max_length} tokens")
        return min(limits)

    def _scales(self) -> dict[str, Any]:
        """The settings of the embeddings' scales; other factors go into the tables."""
        usual = self.weight.shape[1] ** 0.5
        one, two = (
            math.isclose(stack.embedding.scale, usual, rel_tol=1e-6)
            for stack in (self.encoder, self.decoder)
        )
        if one:
            return {"scale_embeddings": True, "scale_target_embeddings": two}
        return {"scale_embeddings": False}

    def _sizes(self, of_encoder: _Layers, of_decoder: _Layers) -> dict[str, Any]:
        """The settings that encoder and decoder share, or have otherwise."""
        one, two = _sizes(of_encoder), _sizes(of_decoder)
        if (one.width, one.activation, one.gated) != (two.width, two.activation, two.gated):
            raise NotRecognisedError(
                "encoder and decoder have other activations, or widths of heads"
            )
        placement, of_target = _placement(self.encoder), _placement(self.decoder)
        return {
            "num_heads": one.heads, "head_dim": one.width // one.heads, "d_ff": one.d_ff,
            "activation": one.activation, "gated_feed_forward": one.gated,
            "norm_placement": placement,
            "decoder_norm_placement": "same" if of_target == placement else of_target,
            "decoder_num_heads": 0 if two.heads == one.heads else two.heads,
            "decoder_d_ff": 0 if two.d_ff == one.d_ff else two.d_ff,
        }  # fmt: skip

    def _relative(self, of_encoder: _Layers, of_decoder: _Layers) -> dict[str, Any]:
        """The settings of relative positions; their tables are named."""
        selves = [
            [_attention(layer["self"]) for layer in side] for side in (of_encoder, of_decoder)
        ]
        crosses = [_attention(layer["cross"]) for layer in of_decoder]
        every = [each for side in selves for each in side]
        if any(each.rotary or each.strip is not None for each in crosses):
            raise NotRecognisedError("relative positions between decoder and encoder")
        if _one((each.rotary for each in every), "positions of self-attention"):
            return {"relative_positions": "rotary"}
        if all(each.strip is None for each in every):
            return {}
        strips: list[Tensor] = []
        for side in selves:
            first = side[0].strip
            if first is None or not all(_equal(each.strip, first) for each in side):
                raise NotRecognisedError("layers add different numbers to their scores")
            strips.append(first)
        line = of_encoder[0]["self"].line
        rows = {n for shape in self.shapes if len(strips[0]) in shape for n in shape}
        found = find_buckets(strips, rows, self.longest)
        if found is None:
            raise NotRecognisedError(f"{line}: what is added to scores is no table of buckets")
        buckets, distance = found
        for name, strip in zip(("encoder", "decoder"), strips, strict=True):
            table, _ = bucket_table(strip, buckets, distance)
            self.state[f"{name}.relative.table"] = table
        return {
            "relative_positions": "buckets", "relative_buckets": buckets,
            "relative_max_distance": distance,
        }  # fmt: skip

    def _biases(self) -> dict[str, bool]:
        found = {"attention": False, "feed_forward": False}
        for each in (*self.encoder.sublayers, *self.decoder.sublayers):
            inner = each.inner
            name = "attention" if isinstance(inner, RecognisedAttention) else "feed_forward"
            parts = (
                (inner.query, inner.key, inner.value, inner.out)
                if isinstance(inner, RecognisedAttention)
                else (inner.up, inner.gate, inner.down)
            )
            found[name] |= any(bool(part[1].any()) for part in parts if part is not None)
        return found

    def _name(
        self,
        config: TransformerConfig,
        of_encoder: _Layers,
        of_decoder: _Layers,
    ) -> None:
        for side, layers, stack in (
            ("encoder", of_encoder, self.encoder), ("decoder", of_decoder, self.decoder)
        ):  # fmt: skip
            self._name_side(side, layers, stack, config)
        self.state["output_proj.weight"] = self.weight
        if config.output_bias:
            self.state["output_proj.bias"] = self.bias

    def _name_side(
        self, side: str, layers: _Layers, stack: Stack, config: TransformerConfig
    ) -> None:
        for i, layer in enumerate(layers):
            for kind, sublayer in layer.items():
                name = "feed_forward" if kind == "feed_forward" else f"{kind}_attn"
                self._sublayer(f"{side}.layers.{i}.{name}", sublayer, config)
        if stack.final_norm is not None:
            self._norm(f"{side}.norm", stack.final_norm, config)

    def _embedding(self, name: str, of: RecognisedEmbedding, config: TransformerConfig) -> None:
        self.state[f"{name}.tokens.weight"] = of.table
        if config.positions != "none":
            rows = torch.zeros(config.max_positions, config.d_model)
            if of.positions is not None:
                kept = of.positions[: config.max_positions]
                rows[: len(kept)] = kept
            self.state[f"{name}.positions.table"] = rows
        if of.token_norm is not None:
            self._norm(f"{name}.token_norm", of.token_norm, config)
        if of.norm is not None:
            self._norm(f"{name}.norm", of.norm, config)

    def _sublayer(self, name: str, of: Sublayer, config: TransformerConfig) -> None:
        inner = of.inner
        if isinstance(inner, RecognisedAttention):
            factor = inner.scale * math.sqrt(inner.query[0].shape[0] / inner.heads)
            query = inner.query
            if abs(factor - 1) > 1e-6:
                query = query[0] * factor, query[1] * factor
            parts = {"q_proj": query, "k_proj": inner.key, "v_proj": inner.value,
                     "out_proj": inner.out}  # fmt: skip
            biased = config.attention_bias
        else:
            parts = {"up_proj": inner.up, "down_proj": inner.down}
            if inner.gate is not None:
                parts["gate_proj"] = inner.gate
            biased = config.feed_forward_bias
        for part, (weight, bias) in parts.items():
            self.state[f"{name}.{part}.weight"] = weight
            if biased:
                self.state[f"{name}.{part}.bias"] = bias.clone()
        self._norm(f"{name}_residual.norm", of.norm, config)

    def _norm(self, name: str, of: Norm, config: TransformerConfig) -> None:
        self.state[f"{name}.weight"] = of.weight
        if config.norm_bias:
            self.state[f"{name}.bias"] = torch.zeros_like(of.weight) if of.bias is None else of.bias


def name_layers(encoder: Stack) -> tuple[TransformerConfig, dict[str, Tensor]]:
    """The config and the weights of an encoder's layers, whose embeddings are elsewhere.

    The config has the same settings for a decoder, which nobody runs.

    Raises:
        NotRecognisedError: they are no layers of a config.
    """
    assembler = ModelAssembler((encoder, encoder), (torch.zeros(0), torch.zeros(0)), (), None)
    return assembler.build_encoder()


@dataclass(frozen=True)
class _Sizes:
    heads: int
    width: int
    d_ff: int
    gated: bool
    activation: str


def _layers(stack: Stack, kinds: Sequence[str]) -> list[dict[str, Sublayer]]:
    """The sublayers of each layer, by kind.

    Raises:
        NotRecognisedError: their order is another, or a mask is.
    """
    found = []
    sublayers = list(stack.sublayers)
    if not sublayers or len(sublayers) % len(kinds):
        raise NotRecognisedError(f"{len(sublayers)} sublayers are no layers of {', '.join(kinds)}")
    for i, each in enumerate(sublayers):
        kind, expected = _kind(each), kinds[i % len(kinds)]
        if kind != expected:
            raise NotRecognisedError(f"{each.line}: {kind} where {expected} is expected")
        if isinstance(each.inner, RecognisedAttention):
            _check_mask(each, causal=kind == "self" and len(kinds) == 3)
        if i % len(kinds) == 0:
            found.append(dict[str, Sublayer]())
        found[-1][kind] = each
    return found


def _kind(sublayer: Sublayer) -> str:
    if isinstance(sublayer.inner, RecognisedFeedForward):
        return "feed_forward"
    return "self" if sublayer.inner.memory is sublayer.inner.source else "cross"


def _attention(sublayer: Sublayer) -> RecognisedAttention:
    assert isinstance(sublayer.inner, RecognisedAttention)
    return sublayer.inner


def _check_mask(sublayer: Sublayer, causal: bool) -> None:
    assert isinstance(sublayer.inner, RecognisedAttention)
    masked = sublayer.inner.masked
    expected = torch.ones_like(masked).triu(1) if causal else torch.zeros_like(masked)
    if not torch.equal(masked, expected):
        wanted = "later tokens" if causal else "nothing"
        raise NotRecognisedError(f"{sublayer.line}: masks other keys than {wanted}")


def _sizes(layers: Sequence[dict[str, Sublayer]]) -> _Sizes:
    attentions = [
        s.inner
        for layer in layers
        for s in layer.values()
        if isinstance(s.inner, RecognisedAttention)
    ]
    forwards = [
        s.inner
        for layer in layers
        for s in layer.values()
        if isinstance(s.inner, RecognisedFeedForward)
    ]
    return _Sizes(
        _one((a.heads for a in attentions), "numbers of heads"),
        _one((a.query[0].shape[0] for a in attentions), "widths of heads"),
        _one((f.up[0].shape[0] for f in forwards), "widths of feed-forwards"),
        _one((f.gate is not None for f in forwards), "forms of feed-forwards"),
        _one((f.activation for f in forwards), "activations"),
    )


def find_buckets(
    strips: Sequence[Tensor], rows: Iterable[int], longest: int | None
) -> tuple[int, int] | None:
    """The number of buckets of distances, and the distance of the last; None if there are none.

    Args:
        strips: of the encoder and the decoder; see ``RecognisedAttention.strip``.
        rows: what the number may be.
        longest: the largest length of a source; beyond that of the strips, the last bucket has
            to be known.
    """
    length = (strips[0].shape[1] + 1) // 2  # of the encoder
    most = MOST_DISTANCE if longest is not None and longest <= length else length
    for buckets in sorted(set(rows)):
        for distance in range(buckets // 2 + 1, most if buckets >= 4 else 0):
            if all(bucket_table(strip, buckets, distance)[1] for strip in strips):
                return buckets, distance
    return None


def bucket_table(strip: Tensor, buckets: int, distance: int) -> tuple[Tensor, bool]:
    """The table (buckets, H) of a strip, and whether it is constant in each bucket."""
    length = (strip.shape[1] + 1) // 2
    causal = bool(strip[:, -1].isnan().all())
    lookup = bucket_lookup(buckets, distance, not causal)
    known = strip[:, : length if causal else None]
    offsets = torch.arange(known.shape[1]) - length + 1
    index = lookup[offsets.clamp(-distance, 0 if causal else distance) + distance]
    table = torch.zeros(buckets, len(strip)).index_copy(0, index, known.t())
    return table, bool(torch.equal(table[index], known.t()))


def _equal(one: Tensor | None, two: Tensor | None) -> bool:
    """Whether two tensors have the same values; NaN is equal to NaN."""
    if one is None or two is None or one.shape != two.shape:
        return False
    return torch.equal(one.isnan(), two.isnan()) and torch.equal(one.nan_to_num(), two.nan_to_num())


def _one(values: Any, what: str) -> Any:
    found = list(dict.fromkeys(values))
    if len(found) != 1:
        raise NotRecognisedError(f"different {what}: {', '.join(map(str, found))}")
    return found[0]


def _norms(stack: Stack) -> Iterator[Norm]:
    embedding = stack.embedding
    for each in (embedding.token_norm, embedding.norm, stack.final_norm):
        if each is not None:
            yield each
    for sublayer in stack.sublayers:
        _ = sublayer.placement
        yield sublayer.norm


def _placement(stack: Stack) -> Any:
    return _one((each.placement for each in stack.sublayers), "places of norms")


def _embedding_norm(embedding: RecognisedEmbedding) -> Any:
    if embedding.norm is not None and embedding.token_norm is not None:
        raise NotRecognisedError("embeddings with two norms")
    if embedding.norm is not None:
        return "sum"
    return "none" if embedding.token_norm is None else "tokens"
