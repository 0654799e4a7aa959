"""Encoder and decoder of a program, from their last tensors back to the embeddings.

A stack is recognised backwards: a norm, or what a sublayer adds to the stream, or the embeddings.

Axes: B batch, L length of one side, E width, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, fx

from tfexport.export.operators import REARRANGED, aten
from tfexport.export.recognition.attention import RecognisedAttention, read_attention
from tfexport.export.recognition.dataflow import Dataflow, NotRecognisedError
from tfexport.export.recognition.sublayers import (
    Norm,
    RecognisedFeedForward,
    find_norm,
    read_feed_forward,
)

Placement = Literal["post", "pre", "res_post"]


@dataclass(frozen=True)
class Sublayer:
    """The tensor that is added to the stream.

    Attributes:
        inner: attention or feed-forward.
        before: the norm of what it takes.
        after: the norm of what it gives, before it is added.
        on_sum: the norm of the sum.
        line: the user's line.
        factor: of the stream.
    """

    inner: RecognisedAttention | RecognisedFeedForward
    before: Norm | None
    after: Norm | None
    line: str
    factor: float
    on_sum: Norm | None = None

    @property
    def placement(self) -> Placement:
        """Where its norm is.

        Raises:
            NotRecognisedError: it has none, or several.
        """
        found: list[Placement] = []
        if self.before is not None:
            found.append("pre")
        if self.after is not None:
            found.append("res_post")
        if self.on_sum is not None:
            found.append("post")
        if len(found) != 1:
            raise NotRecognisedError(f"{self.line}: a sublayer with {len(found)} norms")
        return found[0]

    @property
    def norm(self) -> Norm:
        """Its norm."""
        (found,) = [n for n in (self.before, self.after, self.on_sum) if n is not None]
        return found


@dataclass(frozen=True)
class RecognisedEmbedding:
    """The start of a stack.

    Attributes:
        table: (V, E).
        scale: the number that all of its vectors are multiplied with.
        positions: (M, E), one row for each position; None if nothing is added.
        token_norm: the norm of the tokens' vectors.
        norm: the norm of the sum.
    """

    table: Tensor
    scale: float
    positions: Tensor | None
    token_norm: Norm | None
    norm: Norm | None = None


@dataclass(frozen=True)
class Stack:
    """An encoder or a decoder.

    Attributes:
        embedding: of its ids.
        sublayers: in their order.
        final_norm: after the last.
    """

    embedding: RecognisedEmbedding
    sublayers: tuple[Sublayer, ...]
    final_norm: Norm | None


class StackReader:
    """Reads the stacks of a program."""

    def __init__(self, flow: Dataflow, other: Dataflow | None = None) -> None:
        """Take the dataflow of one side, and that of the encoder if this is the decoder."""
        self.flow, self.other = flow, other

    def read(self, result: fx.Node) -> Stack:
        """The stack whose last tensor is a node.

        Raises:
            NotRecognisedError: naming the first operator that is none of the known forms.
        """
        node, found = self._walk(result)
        return _in_order(self._embedding(node), found)

    def read_layers(self, result: fx.Node) -> tuple[fx.Node, Stack]:
        """The first tensor of the stack whose last one is a node, and its layers.

        The embedding of the stack is empty: where the first tensor comes from is not looked at.

        Raises:
            NotRecognisedError: there is no layer, or one is of no known form.
        """
        node, found = self._walk(result)
        if found and isinstance(found[0], Norm):  # of the embeddings
            node, found = found[0].result, found[1:]
        if not found:
            raise NotRecognisedError(
                f"{self.flow.program.line_of(node)} is no norm and no sublayer"
            )
        width = self.flow.values[node].shape[-1]
        return node, _in_order(RecognisedEmbedding(torch.zeros(0, width), 1.0, None, None), found)

    def _walk(self, result: fx.Node) -> tuple[fx.Node, list[Norm | Sublayer]]:
        """Where the embeddings end, and the norms and sublayers from there to a node, in order."""
        flow, node = self.flow, self.flow.peeled(result)
        backwards: list[Norm | Sublayer] = []
        while True:
            if (norm := self._norm(node)) is not None:
                backwards.append(norm)
                node = flow.peeled(norm.source)
            elif (added := flow.residual(node)) is not None:
                backwards.append(self._sublayer(*added))
                node = added[0]
            else:
                break
        return node, backwards[::-1]

    def _norm(self, node: fx.Node) -> Norm | None:
        return self.flow.norms.get(node) or find_norm(self.flow, node)

    def _sublayer(self, prev: fx.Node, factor: float, sub: fx.Node) -> Sublayer:
        flow, line = self.flow, self.flow.program.line_of(sub)
        after = self._norm(flow.peeled(sub))
        if after is not None and not flow.dominates(prev, after.source):
            after = None
        result = sub if after is None else flow.peeled(after.source)
        ends = flow.leaves(result, prev)
        inner: RecognisedAttention | RecognisedFeedForward
        if any(_is_product(flow, end) for end in ends):
            inner = read_attention(flow, self.other, result, prev)
        elif len(ends) == 1 and ends[0] is not prev:
            inner = read_feed_forward(flow, result, ends[0], prev)
        else:
            raise NotRecognisedError(f"{line} is neither attention nor a feed-forward")
        source = flow.peeled(inner.source)
        before = None
        if source is not prev:
            before = self._norm(source)
            if before is None or flow.peeled(before.source) is not prev:
                raise NotRecognisedError(f"{flow.program.line_of(source)} is between sublayers")
        if isinstance(inner, RecognisedAttention) and inner.memory in flow.side:
            if flow.peeled(inner.memory) is not source:
                raise NotRecognisedError(f"{line}: queries and keys of different tensors")
            inner = replace(inner, memory=inner.source)
        return Sublayer(inner, before, after, line, factor)

    # Embeddings.

    def _embedding(self, result: fx.Node) -> RecognisedEmbedding:
        flow = self.flow
        (start, *more) = flow.leaves(result)
        if more:
            raise NotRecognisedError(
                f"{flow.program.line_of(result)}: adds up several tensors; positions may not "
                "depend on ids"
            )
        token_norm = self._norm(start)
        entry = start
        if token_norm is not None:
            (entry, *more) = flow.leaves(flow.peeled(token_norm.source))
        if more or entry.target is not aten.embedding.default:
            raise NotRecognisedError(
                f"{flow.program.line_of(entry)} is no embedding and no sublayer"
            )
        weight: Tensor = flow.values[entry.args[0]].detach()  # type: ignore[index]
        ids = entry.args[1]
        given = flow.program.target if flow.decoder else flow.program.inputs[0]
        if not self._is(ids, given):
            raise NotRecognisedError(
                f"{flow.program.line_of(entry)}: embeds other ids than those given"
            )
        scaled = token_norm.source if token_norm is not None else result
        table, scale = self._table(entry, scaled, weight)
        if token_norm is not None and start is not result:
            matrix = flow.read_matrix(start, result)
            if not torch.equal(matrix, torch.eye(len(matrix))):
                line = flow.program.line_of(result)
                raise NotRecognisedError(f"{line}: scales a norm of embeddings")
        return RecognisedEmbedding(table, scale, self._positions(start, result), token_norm)

    def _is(self, node: object, given: fx.Node) -> bool:
        """Whether a node has the ids that are given, at most in another order of axes."""
        while isinstance(node, fx.Node) and node is not given:
            if node.target not in REARRANGED:
                return False
            node = node.args[0]
        return node is given

    def _table(self, entry: fx.Node, result: fx.Node, weight: Tensor) -> tuple[Tensor, float]:
        """The vectors of all ids (V, E), without positions, and a factor of them."""
        if entry is result:
            return weight.clone(), 1.0
        matrix = self.flow.read_matrix(entry, result)
        if torch.equal(matrix, torch.eye(weight.shape[1]) * matrix[0, 0]):
            return weight.clone(), float(matrix[0, 0])
        return weight @ matrix.T, 1.0

    def _positions(self, start: fx.Node, result: fx.Node) -> Tensor | None:
        """The vector that is added at each position (M, E); None for nothing."""
        flow = self.flow
        if start is result:
            return None
        of = flow.linear(start, result)
        if not flow.constant(of).any():
            return None
        return flow.longest(lambda: flow.canonical(result, flow.constant(of))[0].clone())


def _is_product(flow: Dataflow, node: fx.Node) -> bool:
    """Whether a node multiplies two activations, as attention does."""
    name = str(node.target)
    return any(word in name for word in ("matmul", "bmm", "einsum", "attention"))


def _in_order(embedding: RecognisedEmbedding, found: Sequence[Norm | Sublayer]) -> Stack:
    """Give each norm its place."""
    rest = list(found)
    if rest and isinstance(rest[0], Norm):
        embedding = replace(embedding, norm=rest[0])
        rest = rest[1:]
    sublayers: list[Sublayer] = []
    final: Norm | None = None
    for i, each in enumerate(rest):
        if isinstance(each, Sublayer):
            sublayers.append(each)
            continue
        if not sublayers:
            raise NotRecognisedError("embeddings with two norms")
        last = sublayers[-1]
        if last.before is None and last.after is None and last.on_sum is None:
            sublayers[-1] = replace(last, on_sum=each)
        elif i == len(rest) - 1:
            final = each
        else:
            raise NotRecognisedError(f"a norm after {last.line}, which has one already")
    return Stack(embedding, tuple(sublayers), final)
