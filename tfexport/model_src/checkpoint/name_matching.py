"""Matching of a file's keys with the modules' own names, by words and shapes.

Most models of tutorials are a ``TransformerConfig`` under other names. A key is split into words,
and the words of the field tell what it is: ``slf_attn.w_qs`` makes queries. Shapes tell up from
down projections, and which tables are embeddings. A key without a certain place gets none.

Letters: E the width of the model, F that inside a feed-forward, V a vocabulary, M positions.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tfexport.errors import Message, Option
from tfexport.model_src.checkpoint.rename_tables import AUTO, write_table
from tfexport.model_src.embedding import halves_table, sinusoidal_table, t2t_table

_WEIGHT = ("weight", "gamma", "alpha", "a_2", "scale", "g")
_BIAS = ("bias", "beta", "b_2")
_QKV = {
    "q": {"q", "query", "queries", "qs", "wq"},
    "k": {"k", "key", "keys", "ks", "wk"},
    "v": {"v", "value", "values", "vs", "wv"},
}
_PACKED = {"qkv": "qkv", "wqkv": "qkv", "kv": "kv", "wkv": "kv"}
_OUT = {"o", "out", "output", "concat", "mix", "wo"}
_LINEAR = {
    "w", "fc", "proj", "projection", "projections", "linear", "linears", "lin", "to", "net", "nets",
    "dense", "c", "layer", "layers", "block", "blocks", "module",
}  # fmt: skip
_CROSS = {
    "cross", "src", "source", "enc", "encoder", "memory", "mem", "context", "inter", "ca",
    "crossattention", "crossattn",
}  # fmt: skip
_SELF = {"self", "slf", "tgt", "trg", "target", "masked", "causal", "own", "sa", "selfattention"}
_ATTENTION = {"attn", "att", "attention", "mha", "multihead"} | _CROSS | _SELF
_FEED_FORWARD = {
    "ff", "ffn", "feed", "forward", "feedforward", "mlp", "pwff", "positionwise", "pointwise",
}  # fmt: skip
_FIRST, _SECOND = {"in", "up", "inner", "intermediate", "wi"}, {"down", "outer", "wo"}
_SOURCE = {"src", "source", "enc", "encoder", "input", "inputs"}
_TARGET = {"tgt", "trg", "target", "dec", "decoder", "output", "outputs"}
_EMBEDDING = {"emb", "embed", "embedding", "embeddings", "embedder", "lut", "wte"}
_OUTPUT = {
    "generator", "head", "logits", "prj", "proj", "projection", "classifier", "fc", "linear",
    "dense", "out", "output",
}  # fmt: skip
_FINAL = {"final", "last"}
_LISTED = 12  # lines about keys without a place
_NO_WEIGHTS = ("_float_tensor", "version")  # buffers of a device or a version
_TABLES = (
    ("sinusoidal", sinusoidal_table), ("sinusoidal_halves", halves_table),
    ("sinusoidal_t2t", t2t_table),
)  # fmt: skip


@dataclass
class Matched:
    """Keys with their places in the project's own modules.

    Attributes:
        names: key to the own name.
        ignored: keys without trained values: masks, and tables that are there twice.
        unplaced: key to the reason why it has no place.
        likely: some of these keys to a name that may be right.
        values: config values that only names or tensors show; None for one that has to be given.
        required: config keys that have to be given, in addition to those of every renamed file.
        tie_output: whether the file has no output table, so that the target's serves as it.
    """

    names: dict[str, str] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    unplaced: dict[str, str] = field(default_factory=dict)
    likely: dict[str, str] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    required: list[str] = field(default_factory=list)
    tie_output: bool = False


@dataclass(frozen=True)
class _Owner:
    """The tensors of one module of the file, by kind: ``weight``, ``bias``."""

    path: str
    keys: Mapping[str, str]
    shapes: Mapping[str, tuple[int, ...]]
    order: int

    @property
    def words(self) -> list[str]:
        return _words(self.path)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the weight; () if there is a bias alone."""
        return self.shapes.get("weight", ())

    @property
    def transposed(self) -> bool:
        """Whether the length of the bias shows that the matrix is stored as (in, out)."""
        bias = self.shapes.get("bias", ())
        return len(self.shape) == 2 and bias == self.shape[1:] and bias != self.shape[:1]


def _words(text: str) -> list[str]:
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", text)
    return re.findall(r"[a-z]+|[0-9]+", spaced.lower())


def match_names(tensors: Mapping[str, Tensor], stated: Mapping[str, Any]) -> Matched:
    """Match the keys of a file with the own names.

    Args:
        tensors: the tensors of the file.
        stated: config values that files or the caller give.
    """
    matched = Matched()
    matched.ignored += [
        key
        for key, tensor in tensors.items()
        if key.rpartition(".")[2] in _NO_WEIGHTS or _is_causal_mask(tensor)
    ]
    owners = _owners({key: it for key, it in tensors.items() if key not in matched.ignored})
    sizes = Counter(size for it in tensors.values() for size in {*it.shape} if size > 1)
    width = max(sizes, key=lambda size: sizes[size], default=0)
    layers, others = _layers(owners)
    if len(layers) != 2:
        found = ", ".join(f"{prefix}N" for prefix in layers) or "none"
        why = f"numbered layers of an encoder and a decoder were not found ({found})"
        return Matched(unplaced={key: why for it in owners for key in it.keys.values()})
    _place_stacks(matched, layers, width)
    if any(it.transposed for it in owners):
        _refuse_square(matched, owners)
    _place_tables(matched, others, tensors, width)
    _place_norms(matched, [it for it in others if _is_norm(it, width)], stated)
    _read_norm(matched, [it for it in owners if _is_norm(it, width)])
    for owner in owners:
        for key in owner.keys.values():
            if key not in matched.names and key not in matched.ignored:
                matched.unplaced.setdefault(key, "its words and its shape fit no place")
    _refuse_shared_places(matched)
    return matched


def _owners(tensors: Mapping[str, Tensor]) -> list[_Owner]:
    keys: dict[str, dict[str, str]] = {}
    for key in tensors:
        path, kind = _split_kind(key)
        if kind in keys.setdefault(path, {}):
            path, kind = key, "weight"  # two weights of one module
        keys.setdefault(path, {})[kind] = key
    return [
        _Owner(path, its, {kind: tuple(tensors[key].shape) for kind, key in its.items()}, order)
        for order, (path, its) in enumerate(keys.items())
        if its
    ]


def _split_kind(key: str) -> tuple[str, str]:
    path, _, leaf = key.rpartition(".")
    if path and leaf in (*_WEIGHT, *_BIAS):
        return path, "bias" if leaf in _BIAS else "weight"
    for kind in ("weight", "bias"):  # in_proj_weight
        if leaf.endswith(f"_{kind}"):
            return key.removesuffix(f"_{kind}"), kind
    return key, "bias" if leaf in _BIAS else "weight"


def _is_causal_mask(tensor: Tensor) -> bool:
    """Whether a tensor is a constant mask of later positions."""
    while tensor.dim() > 2 and tensor.shape[0] == 1:
        tensor = tensor[0]
    if tensor.dim() != 2 or tensor.shape[0] != tensor.shape[1] or tensor.shape[0] < 2:
        return False
    allowed = torch.ones_like(tensor, dtype=torch.bool).tril()
    if tensor.dtype == torch.bool:
        return torch.equal(tensor, allowed) or torch.equal(tensor, ~allowed)
    one, minus = torch.ones_like(tensor), torch.full_like(tensor.float(), float("-inf"))
    return (
        torch.equal(tensor, one * allowed)
        or torch.equal(tensor, one * ~allowed)
        or torch.equal(tensor.float(), torch.where(allowed, 0.0, minus))
    )


# The layers: two lists of numbered modules, of which the decoder's have two attentions.


_Layers = Mapping[str, Mapping[int, Sequence[tuple[str, _Owner]]]]


def _layers(owners: Sequence[_Owner]) -> tuple[_Layers, list[_Owner]]:
    """The lists of layers, by what is before the number; and the owners that are in none."""
    lists: dict[str, dict[int, list[tuple[str, _Owner]]]] = {}
    for owner in owners:
        for number in re.finditer(r"[0-9]{1,6}", owner.path):
            rest = owner.path[number.end() :]
            inside = lists.setdefault(owner.path[: number.start()], {})
            inside.setdefault(int(number[0]), []).append((rest, owner))
    whole = [prefix for prefix, found in lists.items() if all(map(_is_layer, found.values()))]
    # Of nested ones, such as "seq2seq.encoder.layers.0", the innermost.
    inner = {p: lists[p] for p in whole if not any(q != p and q.startswith(p) for q in whole)}
    taken = {owner.path for it in inner.values() for each in it.values() for _, owner in each}
    return inner, [owner for owner in owners if owner.path not in taken]


def _is_layer(owners: Sequence[tuple[str, _Owner]]) -> bool:
    matrices = [it for _, it in owners if len(it.shape) == 2]
    norms = [it for _, it in owners if len(it.shape) == 1]
    return len(matrices) >= 4 and len(norms) >= 2 and bool(_attentions(owners))


def _place_stacks(matched: Matched, layers: _Layers, width: int) -> None:
    stacks = {prefix: [*found.values()] for prefix, found in layers.items()}
    counts = {prefix: len(_attentions(found[0])) for prefix, found in stacks.items()}
    encoder, decoder = sorted(counts, key=lambda prefix: counts[prefix])
    if (counts[encoder], counts[decoder]) != (1, 2):
        for prefix, found in layers.items():
            why = f"each of {prefix}N has {counts[prefix]} attentions; an encoder's has 1, and a "
            for _, owner in (pair for each in found.values() for pair in each):
                matched.unplaced |= dict.fromkeys(owner.keys.values(), f"{why}decoder's 2")
        return
    for stack, prefix in (("encoder", encoder), ("decoder", decoder)):
        for place, number in enumerate(sorted(layers[prefix])):
            layer = _Layer(layers[prefix][number], f"{stack}.layers.{place}", width)
            layer.place(matched)


def _attention_part(rest: str, shape: tuple[int, ...] = ()) -> str | None:
    """What a path makes by its last word that says so: one of q, k, v, or packed qkv, kv."""
    for segment in reversed(rest.split(".")):
        words = _words(segment)
        if words == ["c", "attn"] and shape:
            return {2: "kv", 3: "qkv"}.get(max(shape) // min(shape))
        for word in words:
            if word in _PACKED:
                return _PACKED[word]
        if words[:2] == ["in", "proj"]:
            return "qkv"
        if found := [part for part, known in _QKV.items() if known & {*words}]:
            return found[0] if len(found) == 1 else None
    return None


def _plain(path: str, without: Iterable[str] = ()) -> tuple[str, ...]:
    """The words that tell one attention of a layer from another."""
    every = {*_LINEAR, *without}
    words = [word for word in _words(path) if word not in every]
    return tuple(word for i, word in enumerate(words) if i == 0 or word != words[i - 1])


_PARTS = {*_PACKED, *(word for known in _QKV.values() for word in known)}


@dataclass
class _Attention:
    """The projections of one attention: "q", "k", "v", "qkv", "kv", "out", with their owners."""

    words: tuple[str, ...]
    parts: dict[str, list[_Owner]] = field(default_factory=dict)

    @property
    def order(self) -> int:
        return min(it.order for owners in self.parts.values() for it in owners)


def _attentions(owners: Sequence[tuple[str, _Owner]]) -> list[_Attention]:
    """The attentions of a layer, found by what makes queries, keys and values."""
    found: dict[tuple[str, ...], _Attention] = {}

    def add(words: tuple[str, ...], part: str, owner: _Owner) -> None:
        found.setdefault(words, _Attention(words)).parts.setdefault(part, []).append(owner)

    numbered = _numbered(owners)
    for rest, owner in owners:
        words = _plain(rest, {*_PARTS, "in"})
        if rest in numbered:
            parent, part = numbered[rest]
            add(_plain(parent, _PARTS), part, owner)
        elif (part := _attention_part(rest, owner.shape)) is not None and _fits(owner, part):
            add(words, part, owner)
    outputs = [pair for pair in owners if len(pair[1].shape) == 2 and pair[0] not in numbered]
    for rest, owner in outputs:
        if _attention_part(rest, owner.shape) is not None:
            continue
        words = _plain(rest, _OUT)
        # One Linear for each head: what is before the number is the attention.
        heads = [it for it in found if it[:-1] == words and it[-1:] and it[-1].isdigit()]
        if words not in found and heads:
            joined = found.setdefault(words, _Attention(words))
            for head in heads:
                for part, its in found.pop(head).parts.items():
                    joined.parts.setdefault(part, []).extend(its)
        if words in found:
            found[words].parts.setdefault("out", []).append(owner)
    for attention in found.values():
        several = attention.parts.get("out", [])
        if len(several) > 1:
            named = [it for it in several if {*_words(it.path.rpartition(".")[2])} & _OUT]
            attention.parts["out"] = named if len(named) == 1 else several
    return sorted(found.values(), key=lambda it: it.order)


def _fits(owner: _Owner, part: str) -> bool:
    return len(owner.shape) == 2 or (part == "qkv" and not owner.shape)


def _numbered(owners: Sequence[tuple[str, _Owner]]) -> dict[str, tuple[str, str]]:
    """Lists of three or four matrices of one shape, which are queries, keys, values, output."""
    lists: dict[str, list[tuple[int, str, tuple[int, ...]]]] = {}
    for rest, owner in owners:
        parent, _, number = rest.rpartition(".")
        if number.isdigit() and len(owner.shape) == 2 and _attention_part(number) is None:
            lists.setdefault(parent, []).append((int(number), rest, owner.shape))
    return {
        rest: (parent, ("q", "k", "v", "out")[number])
        for parent, found in lists.items()
        if sorted(number for number, _, _ in found) in ([0, 1, 2], [0, 1, 2, 3])
        and len({shape for _, _, shape in found}) == 1
        for number, rest, _ in found
    }


class _Layer:
    """One layer of a file, and where its tensors go."""

    def __init__(self, owners: Sequence[tuple[str, _Owner]], name: str, width: int) -> None:
        self.owners, self.name, self.width = owners, name, width
        self.rests = {owner.path: rest for rest, owner in owners}
        self.attentions = dict(zip(("self_attn", "cross_attn"), self._ordered(), strict=False))
        inside = {
            owner.path
            for attention in self.attentions.values()
            for its in attention.parts.values()
            for owner in its
        }
        matrices = [it for _, it in owners if len(it.shape) == 2 and it.path not in inside]
        self.feed_forward = sorted(matrices, key=lambda it: it.order)

    def place(self, matched: Matched) -> None:
        for name, attention in self.attentions.items():
            self._place_attention(matched, name, attention)
        self._place_feed_forward(matched)
        self._place_norms(matched, [it for _, it in self.owners if _is_norm(it, self.width)])

    def _ordered(self) -> list[_Attention]:
        """The self-attention and the cross-attention: by words, by number, by order."""
        found = _attentions(self.owners)
        if len(found) != 2:
            return found
        common = {*found[0].words} & {*found[1].words}
        own = [{*it.words} - common for it in found]
        cross = [bool(words & _CROSS) for words in own]
        causal = [bool(words & _SELF) for words in own]
        if cross[0] != cross[1]:
            swapped = cross[0]
        elif causal[0] != causal[1]:
            swapped = causal[1]
        else:
            numbers = [[int(word) for word in it.words if word.isdigit()] for it in found]
            swapped = all(numbers) and numbers[0] > numbers[1]
        return found[::-1] if swapped else found

    def _place_attention(self, matched: Matched, name: str, attention: _Attention) -> None:
        for part, owners in attention.parts.items():
            target = f"{self.name}.{name}.{part}_proj"
            if part in ("qkv", "kv") and not all(
                "in_proj" in it.path.replace("-", "_") for it in owners
            ):
                order = (
                    "all queries, all keys, all values" if part == "qkv" else "all keys, all values"
                )
                for owner in owners:
                    why = f"it is packed, and names do not show how; {part}_proj is {order}"
                    self._refuse(matched, owner, why, target)
            elif len(owners) > 1 and part in ("q", "k", "v"):
                for owner in owners:
                    head = re.findall(r"[0-9]+", self.rests[owner.path])[-1]
                    _place(matched, owner, f"{target}.{head}")
            elif len(owners) > 1:
                for owner in owners:
                    self._refuse(matched, owner, f"several may be {part}_proj of {name}")
            else:
                _place(matched, owners[0], target)

    def _place_feed_forward(self, matched: Matched) -> None:
        found, width = self.feed_forward, self.width
        name = f"{self.name}.feed_forward"
        ups = [it for it in found if _inputs(it) == width]
        downs = [it for it in found if _outputs(it) == width]
        both = [it for it in ups if it in downs]
        if both and len(found) == 2:  # F is E
            ups, downs = self._by_name(found)
        elif len(downs) == 1 and len(ups) in (1, 2) and len(found) == len(ups) + 1:
            inner = _inputs(downs[0])
            if {_outputs(it) for it in ups} == {2 * inner}:
                why = "it is packed, and names do not show which half is the gate, as in "
                self._refuse(matched, ups[0], f"{why}gate_up_proj", f"{name}.gate_up_proj")
                _place(matched, downs[0], f"{name}.down_proj")
                return
            if len(ups) == 2:
                gate = [it for it in ups if self._is_gate(it, ups)]
                if len(gate) == 1:
                    _place(matched, gate[0], f"{name}.gate_proj")
                    ups.remove(gate[0])
        if len(ups) != 1 or len(downs) != 1:
            for owner in found:
                why = f"{len(found)} matrices are in no attention; 2 of a feed-forward, or 3, fit"
                self._refuse(matched, owner, why)
            return
        if self._rank(ups[0]) > self._rank(downs[0]):
            for owner in found:
                why = "its name and its shape contradict each other: it may be stored as (in, out)"
                self._refuse(matched, owner, why)
            return
        _place(matched, ups[0], f"{name}.up_proj")
        _place(matched, downs[0], f"{name}.down_proj")

    def _is_gate(self, owner: _Owner, both: Sequence[_Owner]) -> bool:
        words = [*map(_words, (self.rests[it.path].rpartition(".")[2] for it in both))]
        mine = _words(self.rests[owner.path].rpartition(".")[2])
        if any("gate" in each for each in words):
            return "gate" in mine
        return words in ([["w", "1"], ["w", "3"]], [["wi", "0"], ["wi", "1"]]) and mine == words[0]

    def _by_name(self, found: Sequence[_Owner]) -> tuple[list[_Owner], list[_Owner]]:
        first, second = sorted(found, key=lambda it: (self._rank(it), it.order))
        return [first], [second]

    def _rank(self, owner: _Owner) -> int:
        """0 for what a name says comes first, 2 for what comes second, 1 if it says nothing."""
        words = self.rests[owner.path].rpartition(".")[2] or self.rests[owner.path]
        named = {*_words(words)}
        if named & _FIRST or "1" in named:
            return 0
        return 2 if named & _SECOND or "2" in named else 1

    def _place_norms(self, matched: Matched, norms: Sequence[_Owner]) -> None:
        sublayers = [*self.attentions, "feed_forward"]
        if len(norms) != len(sublayers):
            for owner in norms:
                why = f"a layer has {len(norms)} norms; {len(sublayers)} were expected"
                self._refuse(matched, owner, why)
            return
        placed: dict[str, _Owner] = {}
        left = []
        for owner in norms:
            name = self._norm_by_words(owner)
            if name is None or name in placed:
                left.append(owner)
            else:
                placed[name] = owner
        rest = [name for name in sublayers if name not in placed]
        if len(rest) > 1 and not self._in_order(rest, left):
            for owner in left:
                self._refuse(matched, owner, "names do not show which sublayer it is of")
        else:
            placed |= dict(zip(rest, left, strict=True))
        for name, owner in placed.items():
            _place(matched, owner, f"{self.name}.{name}_residual.norm")

    def _norm_by_words(self, owner: _Owner) -> str | None:
        rest = self.rests[owner.path]
        words = {*_words(rest)}
        if words & _FEED_FORWARD or rest.endswith(("post_attention_layernorm", "final_layer_norm")):
            return "feed_forward"
        if rest.endswith("input_layernorm"):
            return "self_attn"
        if not words & _ATTENTION:
            return None
        if "cross_attn" not in self.attentions:
            return "self_attn"
        common = {*self.attentions["self_attn"].words} & {*self.attentions["cross_attn"].words}
        if words & _CROSS - common:
            return "cross_attn"
        return "self_attn" if words & _SELF or not words & _CROSS else None

    def _in_order(self, sublayers: Sequence[str], norms: Sequence[_Owner]) -> bool:
        """Whether the order in the file is that of the sublayers, and that of any numbers."""
        firsts = [it.order for name, it in self.attentions.items() if name in sublayers]
        firsts += [it.order for it in self.feed_forward[:1] if "feed_forward" in sublayers]
        numbers = [[int(it) for it in re.findall(r"[0-9]+", self.rests[n.path])] for n in norms]
        return firsts == sorted(firsts) and all(
            one < two for one, two in zip(numbers, numbers[1:], strict=False) if one and two
        )

    def _refuse(self, matched: Matched, owner: _Owner, why: str, likely: str = "") -> None:
        for kind, key in owner.keys.items():
            matched.unplaced[key] = why
            if likely:
                matched.likely[key] = f"{likely}.{kind}"


def _inputs(owner: _Owner) -> int:
    return owner.shape[0 if owner.transposed else 1]


def _outputs(owner: _Owner) -> int:
    return owner.shape[1 if owner.transposed else 0]


def _place(matched: Matched, owner: _Owner, name: str) -> None:
    for kind, key in owner.keys.items():
        matched.names[key] = f"{name}.{kind}"
    if owner.transposed:
        matched.names[owner.keys["weight"]] += ".T"


def _refuse_square(matched: Matched, owners: Sequence[_Owner]) -> None:
    """Refuse square matrices of a file that has matrices of both orders, or may have."""
    for owner in owners:
        key = owner.keys.get("weight", "")
        square = len(owner.shape) == 2 and owner.shape[0] == owner.shape[1]
        if square and (name := matched.names.pop(key, None)) is not None:
            matched.likely[key] = f"{name}.T"
            matched.unplaced[key] = (
                "other matrices are stored as (in, out), as .T says; a square one does not show it"
            )


def _is_norm(owner: _Owner, width: int) -> bool:
    return owner.shape in ((width,), (1,)) and {*owner.keys} <= {"weight", "bias"}


# What is outside of the layers.


def _side(path: str) -> str | None:
    """The side that the first segment of a path with such a word says."""
    for segment in path.split("."):
        named = {*_words(segment)}
        if _is_positional(named):
            named -= {"enc", "encoder"}  # position_enc encodes positions
        source, target = bool(named & _SOURCE), bool(named & _TARGET)
        if source != target:
            return "source" if source else "target"
    return None


def _is_positional(words: Iterable[str]) -> bool:
    return any(it.startswith("pos") or it in ("pe", "wpe", "places") for it in words)


def _place_tables(
    matched: Matched, owners: Sequence[_Owner], tensors: Mapping[str, Tensor], width: int
) -> None:
    tokens: dict[str | None, list[_Owner]] = {}
    positions: dict[str | None, list[_Owner]] = {}
    outputs = []
    for owner in owners:
        shape, words = owner.shape, {*owner.words}
        if len(shape) < 2 or shape[-1] != width:
            continue
        if _is_positional(words) or len(shape) > 2:
            if len([size for size in shape if size != 1]) == 2:
                positions.setdefault(_side(owner.path), []).append(owner)
        elif words & _EMBEDDING or not words & _OUTPUT:
            tokens.setdefault(_side(owner.path), []).append(owner)
        else:
            outputs.append(owner)
    _ignore_twins(matched, tokens, tensors)
    _place_sides(matched, tokens, "tokens", "tokens.weight")
    _place_sides(matched, positions, "positions", "positions.table")
    if len(outputs) == 1:
        _place(matched, outputs[0], "output_proj")
    for owner in outputs if len(outputs) > 1 else ():
        matched.unplaced |= dict.fromkeys(owner.keys.values(), "several may be the output table")
    matched.tie_output = not outputs
    placed = [key for key, name in matched.names.items() if name.endswith("positions.table")]
    if placed:
        matched.values["positions"] = _kind_of_positions([tensors[key] for key in placed])


def _place_sides(
    matched: Matched, found: Mapping[str | None, Sequence[_Owner]], what: str, name: str
) -> None:
    """Place tables of the two sides, or one of both."""
    single = {side for side, owners in found.items() if len(owners) == 1}
    if {*found} == single == {None}:
        matched.names[found[None][0].keys["weight"]] = name
        return
    for side, owners in found.items():
        one = "target" if side is None and single == {*found} == {"source", None} else side
        for owner in owners:
            if one is not None and side in single:
                matched.names[owner.keys["weight"]] = f"{one}_embedding.{name}"
            else:
                count = sum(map(len, found.values()))
                why = f"of {count} tables of {what}, names do not show which it is"
                matched.unplaced |= dict.fromkeys(owner.keys.values(), why)


def _ignore_twins(
    matched: Matched, tokens: dict[str | None, list[_Owner]], tensors: Mapping[str, Tensor]
) -> None:
    """Ignore a table of no side, if both sides have the same one."""
    sided = [
        tensors[it.keys["weight"]] for side in ("source", "target") for it in tokens.get(side, ())
    ]
    for owner in tokens.get(None, []) if len(sided) == 2 else ():
        mine = tensors[owner.keys["weight"]]
        if all(it.shape == mine.shape and torch.equal(it, mine) for it in sided):
            matched.ignored.append(owner.keys["weight"])
            tokens[None].remove(owner)
    if not tokens.get(None, [0]):
        del tokens[None]


def _kind_of_positions(tables: Sequence[Tensor]) -> str:
    """The kind of sinusoids that all tables are; "learned" for other values."""
    flat = [it.reshape(-1, it.shape[-1]).float() for it in tables]
    for kind, make in _TABLES:
        if all(torch.allclose(it, make(*it.shape), rtol=0, atol=1e-4) for it in flat):
            return kind
    return "learned"


def _place_norms(matched: Matched, norms: Sequence[_Owner], stated: Mapping[str, Any]) -> None:
    """Place the norms of the stacks and of the embeddings."""
    of_stacks: dict[str, list[_Owner]] = {"source": [], "target": []}
    unsided = []
    for owner in norms:
        if not any(re.search("norm|ln", word) for word in owner.words):
            continue
        side = _side(owner.path)
        if {*owner.words} & _EMBEDDING:
            _place_embedding_norm(matched, owner, side, stated)
        elif side is None:
            unsided.append(owner)
        else:
            of_stacks[side].append(owner)
    if len(unsided) == 1 and of_stacks["source"] and not of_stacks["target"]:
        of_stacks["target"] = unsided
    for side, stack in (("source", "encoder"), ("target", "decoder")):
        if len(of_stacks[side]) != 1:
            continue
        (owner,) = of_stacks[side]
        final = stated.get(f"{stack}_final_norm")
        certain = {*owner.words} & _FINAL or stated.get("norm_placement") == "pre"
        if final is None and not certain:  # it may be of the embeddings instead
            matched.values[f"{stack}_final_norm"] = None
            matched.required.append(f"{stack}_final_norm")
        name = f"{side}_embedding.norm" if final is False else f"{stack}.norm"
        _place(matched, owner, name)


def _place_embedding_norm(
    matched: Matched, owner: _Owner, side: str | None, stated: Mapping[str, Any]
) -> None:
    if side is None:
        return
    key = f"{side}_embedding_norm"
    if stated.get(key) is None:
        matched.values[key] = None
        matched.required.append(key)
    name = "token_norm" if stated.get(key) == "tokens" else "norm"
    _place(matched, owner, f"{side}_embedding.{name}")


def _read_norm(matched: Matched, norms: Sequence[_Owner]) -> None:
    """The kind of norm, if the names of its weights show it."""
    leaves = {key.rpartition(".")[2] for it in norms for key in it.keys.values()}
    if leaves == {"a_2", "b_2"}:
        matched.values["norm"] = "annotated"
    elif any(word.startswith("rms") for it in norms for word in it.words):
        matched.values["norm"] = "rms"
    elif leaves - {"weight", "bias"}:
        matched.required.append("norm")


def _refuse_shared_places(matched: Matched) -> None:
    """Refuse keys that would get one place."""
    keys: dict[str, list[str]] = {}
    for key, name in matched.names.items():
        keys.setdefault(name, []).append(key)
    for name, several in keys.items():
        if len(several) > 1:
            for key in several:
                del matched.names[key]
                matched.unplaced[key] = f"{' and '.join(several)} would both be {name}"


def describe_unplaced(matched: Matched, tensors: Mapping[str, Tensor]) -> Message:
    """The keys that have no place, and the table of the others, for a config."""
    if len(reasons := {*matched.unplaced.values()}) == 1 and not matched.names:
        return Message(f"its names could not be matched: {reasons.pop()}.")
    alike: dict[tuple[str, str], list[str]] = {}
    for key, why in matched.unplaced.items():
        alike.setdefault((re.sub("[0-9]+", "N", _split_kind(key)[0]), why), []).append(key)
    lines = []
    for (general, why), keys in alike.items():
        named = keys[0] if len(keys) == 1 else f"{general}.* ({len(keys)} keys)"
        lines.append(f"\n  {named} {tuple(tensors[keys[0]].shape)}: {why}")
    if len(lines) > _LISTED:
        lines[_LISTED:] = [f"\n  … and {len(lines) - _LISTED} more"]
    count = len(matched.unplaced)
    head = f"{count} of {count + len(matched.names) + len(matched.ignored)} keys have no place:"
    table = write_table({**matched.names, **matched.likely})
    if not table:
        return Message(head, *lines)
    return Message(
        head, *lines, "\nThe others are in this table. Correct and complete it, put it into a file, "
        "and pass that with ", Option("config", "FILE"), "; ", Option("rename", AUTO),
        " is then not needed. Keys without a use belong into 'ignore' (docs/checkpoints.md).\n",
        print_table(table, matched.ignored),
    )  # fmt: skip


def print_table(table: Mapping[str, Any], ignored: Sequence[str] = ()) -> str:
    """A rename table as JSON of a config, one rule a line."""
    rules = [f"{json.dumps(key)}: {json.dumps(name)}" for key, name in table.items()]
    ignore = f',\n "ignore": {json.dumps([*ignored])}' if ignored else ""
    return '{"rename": {\n  ' + ",\n  ".join(rules) + f"\n}}{ignore}}}"
