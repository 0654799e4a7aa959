"""Matching of the keys of layers: which tensor is a query, which norm is of which sublayer.

A key is split into words, and the words of the field tell what it is: ``slf_attn.w_qs`` makes
queries. Shapes tell up from down projections. A key without a certain place gets none.

Letters: E the width of the model, F that inside a feed-forward.
"""

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_QKV = {
    "q": {"q", "query", "queries", "qs", "wq"},
    "k": {"k", "key", "keys", "ks", "wk"},
    "v": {"v", "value", "values", "vs", "wv"},
}
_PACKED = {"qkv": "qkv", "wqkv": "qkv", "kv": "kv", "wkv": "kv"}
_OUT = {"o", "out", "output", "final", "concat", "mix", "wo"}
_LINEAR = {
    "w", "fc", "proj", "projection", "projections", "linear", "linears", "lin", "to", "net", "nets",
    "dense", "c", "layer", "layers", "block", "blocks", "module", "head", "heads",
}  # fmt: skip
_CROSS = {
    "cross", "src", "source", "enc", "encoder", "memory", "mem", "context", "inter", "ca",
    "crossattention", "crossattn", "crossatt",
}  # fmt: skip
_SELF = {
    "self", "slf", "tgt", "trg", "target", "masked", "causal", "own", "sa", "selfattention",
    "selfattn", "selfatt",
}  # fmt: skip
_ATTENTION = {"attn", "att", "attention", "mha", "multihead"} | _CROSS | _SELF
_FEED_FORWARD = {
    "ff", "ffn", "feed", "forward", "feedforward", "mlp", "pwff", "positionwise", "pointwise",
}  # fmt: skip
_MOST_NUMBERS = 6  # numbers of a key that are looked at
_DIGITS = 6  # of the numbers of layers
_SORTED = "the keys are sorted, so that their order shows nothing"
KERNEL = "kernel"  # the weight of a Dense of Flax or Keras, which is (in, out)
_BEFORE, _AFTER = {"pre", "before", "input"}, {"post", "after"}
_FIRST, _SECOND = {"in", "up", "inner", "intermediate", "wi"}, {"down", "outer", "wo"}


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
class Owner:
    """The tensors of one module of the file, by kind: ``weight``, ``bias``."""

    path: str
    keys: Mapping[str, str]
    shapes: Mapping[str, tuple[int, ...]]
    order: int

    @property
    def words(self) -> list[str]:
        """The words of its path."""
        return words_of(self.path)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the weight; () if there is a bias alone."""
        return self.shapes.get("weight", ())

    @property
    def leaf(self) -> str:
        """The last part of the key of the weight."""
        return self.keys.get("weight", "").rpartition(".")[2]

    @property
    def shows_order(self) -> bool:
        """Whether the length of the bias shows how the matrix is stored."""
        bias = self.shapes.get("bias", ())
        return len(self.shape) == 2 and (bias == self.shape[1:]) != (bias == self.shape[:1])

    @property
    def transposed(self) -> bool:
        """Whether the matrix is stored as (in, out), by its bias or as the kernel of a Dense."""
        if self.shows_order:
            return self.shapes["bias"] == self.shape[1:]
        return len(self.shape) == 2 and self.leaf == KERNEL


def words_of(text: str) -> list[str]:
    """The words and the numbers of a key: ``selfAttn_1.W_q`` is self, attn, 1, w, q."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", text)
    return re.findall(r"[a-z]+|[0-9]+", spaced.lower())


# The layers: two lists of numbered modules, of which the decoder's have two attentions.


_Layers = Mapping[str, Mapping[int, Sequence[tuple[str, Owner]]]]


def layers_of(owners: Sequence[Owner]) -> tuple[_Layers, list[Owner]]:
    """The lists of layers, by what is before the number; and the owners that are in none."""
    lists: dict[str, dict[int, list[tuple[str, Owner]]]] = {}
    for owner in owners:
        numbers = re.finditer(r"(?<![0-9])[0-9]{1,6}(?![0-9])", owner.path)
        for number in itertools.islice(numbers, _MOST_NUMBERS):
            rest = owner.path[number.end() :]
            inside = lists.setdefault(owner.path[: number.start()], {})
            inside.setdefault(int(number[0]), []).append((rest, owner))
    whole = [prefix for prefix, found in lists.items() if all(map(_is_layer, found.values()))]
    # Of nested ones, such as "seq2seq.encoder.layers.0", the innermost.
    inner = {p: lists[p] for p in whole if not any(q != p and q.startswith(p) for q in whole)}
    taken = {owner.path for it in inner.values() for each in it.values() for _, owner in each}
    return inner, [owner for owner in owners if owner.path not in taken]


def _is_layer(owners: Sequence[tuple[str, Owner]]) -> bool:
    matrices = [it for _, it in owners if len(it.shape) == 2]
    norms = [it for _, it in owners if len(it.shape) == 1]
    return len(matrices) >= 4 and len(norms) >= 2 and bool(_attentions(owners))


def place_stacks(
    matched: Matched, layers: _Layers, width: int, placements: Mapping[str, str | None]
) -> None:
    """Place the keys of two lists of layers, of which the decoder's have two attentions each.

    Args:
        matched: the keys with their places.
        layers: the lists of layers.
        width: E.
        placements: where the norms of each stack are, if it is given.
    """
    stacks = {prefix: [*found.values()] for prefix, found in layers.items()}
    counts = {prefix: len(_attentions(found[0])) for prefix, found in stacks.items()}
    encoder, decoder = sorted(counts, key=lambda prefix: counts[prefix])
    if (counts[encoder], counts[decoder]) != (1, 2):
        for prefix, found in layers.items():
            why = f"each of {prefix}N has {counts[prefix]} attentions; an encoder's has 1, and a "
            for _, owner in (pair for each in found.values() for pair in each):
                matched.unplaced |= dict.fromkeys(owner.keys.values(), f"{why}decoder's 2")
        return
    shown = False
    ordered = not any(_are_sorted(each) for found in stacks.values() for each in found)
    for stack, prefix in (("encoder", encoder), ("decoder", decoder)):
        for place, number in enumerate(sorted(layers[prefix])):
            name, inside = f"{stack}.layers.{place}", layers[prefix][number]
            layer = _Layer(inside, name, width, ordered, placements[stack])
            layer.place(matched)
            shown = shown or layer.shows_order()
    if not shown:
        _refuse_parameters(
            matched, [it for each in layers.values() for its in each.values() for _, it in its]
        )


def _is_parameter(owner: Owner) -> bool:
    """Whether a matrix is no weight of a module, which would be (out, in) or a kernel."""
    return len(owner.shape) == 2 and not owner.leaf.endswith("weight") and owner.leaf != KERNEL


def _refuse_parameters(matched: Matched, owners: Iterable[Owner]) -> None:
    """Refuse matrices that may be stored either way."""
    for owner in filter(_is_parameter, owners):
        key = owner.keys["weight"]
        if (name := matched.names.pop(key, None)) is not None:
            matched.likely[key] = name
            matched.unplaced[key] = (
                "it is not the weight of a Linear, and nothing shows whether it is (out, in); "
                "end its name with .T if it is (in, out)"
            )


def _are_sorted(owners: Sequence[tuple[str, Owner]]) -> bool:
    """Whether the matrices of a layer are in alphabetical order, as in safetensors files."""
    keys = [it.keys["weight"] for _, it in owners if len(it.shape) == 2]
    ways: tuple[Callable[[str], Any], ...] = (
        str,
        lambda key: key.split("."),
        lambda key: [word.zfill(_DIGITS) if word.isdigit() else word for word in words_of(key)],
    )
    return any(keys == sorted(keys, key=way) for way in ways)


def _attention_part(rest: str, shape: tuple[int, ...] = ()) -> str | None:
    """The part that a path makes, by its last word for one: q, k, v, or packed qkv, kv."""
    for segment in reversed(rest.split(".")):
        words = words_of(segment)
        if words == ["c", "attn"] and shape and min(shape):
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
    words = [word for word in words_of(path) if word not in every]
    return tuple(word for i, word in enumerate(words) if i == 0 or word != words[i - 1])


_PARTS = {*_PACKED, *(word for known in _QKV.values() for word in known)}


@dataclass
class _Attention:
    """The projections of one attention: "q", "k", "v", "qkv", "kv", "out", with their owners."""

    words: tuple[str, ...]
    parts: dict[str, list[Owner]] = field(default_factory=dict)

    @property
    def order(self) -> int:
        return min(it.order for owners in self.parts.values() for it in owners)


def _attentions(owners: Sequence[tuple[str, Owner]]) -> list[_Attention]:
    """The attentions of a layer, found by what makes queries, keys and values."""
    found: dict[tuple[str, ...], _Attention] = {}

    def add(words: tuple[str, ...], part: str, owner: Owner) -> None:
        found.setdefault(words, _Attention(words)).parts.setdefault(part, []).append(owner)

    numbered = _numbered(owners)
    for rest, owner in owners:
        if rest in numbered:
            parent, listed = numbered[rest]
            add(_plain(parent, _PARTS), listed, owner)
        elif (part := _attention_part(rest, owner.shape)) is not None and _fits(owner, part):
            add(_plain(rest, {*_PARTS, "in"}), part, owner)
    for rest, owner in owners:
        is_input = rest in numbered or _attention_part(rest, owner.shape) is not None
        if len(owner.shape) != 2 or is_input:
            continue
        words = _plain(rest, _OUT)
        _join_heads(found, words)
        if (attention := _owner_of(found, words)) is not None:
            attention.parts.setdefault("out", []).append(owner)
    for attention in found.values():
        several = attention.parts.get("out", [])
        named = [it for it in several if {*words_of(it.path.rpartition(".")[2])} & _OUT]
        if len(several) > 1 and len(named) == 1:
            attention.parts["out"] = named
    return sorted(found.values(), key=lambda it: it.order)


def _join_heads(found: dict[tuple[str, ...], _Attention], words: tuple[str, ...]) -> None:
    """Join attentions that are one Linear for each head: their words end with its number."""
    heads = [it for it in found if it[:-1] == words and it[-1:] and it[-1].isdigit()]
    if words in found or not heads:
        return
    joined = found.setdefault(words, _Attention(words))
    for head in heads:
        for part, owners in found.pop(head).parts.items():
            joined.parts.setdefault(part, []).extend(owners)


def _owner_of(
    found: Mapping[tuple[str, ...], _Attention], words: tuple[str, ...]
) -> _Attention | None:
    """The attention whose output has these words: the same, ``to_out.0``, or ``attention.self``."""
    inside = [it for it in found if words and it[: len(words)] == words]
    if words in found or len(inside) == 1:
        return found[words if words in found else inside[0]]
    shorter = words[:-1] if words and words[-1].isdigit() else ()
    return found.get(shorter) if shorter else None


def _fits(owner: Owner, part: str) -> bool:
    return len(owner.shape) == 2 or (part == "qkv" and not owner.shape)


def _numbered(owners: Sequence[tuple[str, Owner]]) -> dict[str, tuple[str, str]]:
    """Lists of three or four matrices of one shape, which are queries, keys, values, output."""
    lists: dict[str, list[tuple[int, str, tuple[int, ...]]]] = {}
    for rest, owner in owners:
        parent, _, number = rest.rpartition(".")
        if re.fullmatch("[0-9]", number) and len(owner.shape) == 2:
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

    def __init__(
        self,
        owners: Sequence[tuple[str, Owner]],
        name: str,
        width: int,
        ordered: bool,
        placement: str | None,
    ) -> None:
        self.owners, self.name, self.width = owners, name, width
        self.ordered = ordered  # whether the order of the file is that of the modules
        self.placement = placement  # of the norms, if it is given
        self.rests = {owner.path: rest for rest, owner in owners}
        self.told_apart = True  # the attentions; see ``_ordered``
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
        norms = [it for _, it in self.owners if is_norm(it, self.width)]
        self._place_feed_forward(matched)
        if self.told_apart:
            for name, attention in self.attentions.items():
                self._place_attention(matched, name, attention)
            self._place_norms(matched, norms)
            return
        parts = [it for each in self.attentions.values() for it in each.parts.values()]
        for owner in (*itertools.chain(*parts), *norms):
            why = f"names do not show which of two attentions comes first, and {_SORTED}"
            self._refuse(matched, owner, why)

    def shows_order(self) -> bool:
        """Whether a bias or names show how the parameters of this layer are stored."""
        if any(it.shows_order for _, it in self.owners if _is_parameter(it)):
            return True
        pair = [it for it in self.feed_forward if _is_parameter(it) and it.shape != it.shape[::-1]]
        if len(pair) != 2 or not (order := self._compare(*pair)):
            return False
        return _inputs(pair[0 if order < 0 else 1]) == self.width

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
            self.told_apart = self.ordered or (all(numbers) and numbers[0] != numbers[1])
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
            elif part in ("q", "k", "v") and (heads := self._heads(owners)):
                for owner, head in zip(owners, heads, strict=True):
                    place(matched, owner, f"{target}.{head}")
            elif len(owners) > 1:
                for owner in owners:
                    self._refuse(matched, owner, f"several may be {part}_proj of {name}")
            else:
                place(matched, owners[0], target)

    def _heads(self, owners: Sequence[Owner]) -> list[int]:
        """The number of each of several heads, by the last number in its name; [] for no heads."""
        numbers = [re.findall("[0-9]+", self.rests[owner.path])[-1:] for owner in owners]
        heads = [int(number) for last in numbers for number in last]
        return heads if len(owners) > 1 and sorted(heads) == [*range(len(owners))] else []

    def _place_feed_forward(self, matched: Matched) -> None:
        found, width = self.feed_forward, self.width
        name = f"{self.name}.feed_forward"
        ups = [it for it in found if _inputs(it) == width]
        downs = [it for it in found if _outputs(it) == width]
        both = [it for it in ups if it in downs]
        if both and len(found) == 2:  # F is E
            order = self._compare(*found)
            if not order and not self.ordered:
                for owner in found:
                    why = f"names do not show which of two comes first, and {_SORTED}"
                    self._refuse(matched, owner, why)
                return
            first, second = found[::-1] if order > 0 else found
            ups, downs = [first], [second]
        elif len(downs) == 1 and len(ups) in (1, 2) and len(found) == len(ups) + 1:
            inner = _inputs(downs[0])
            if {_outputs(it) for it in ups} == {2 * inner}:
                why = "it is packed, and names do not show which half is the gate, as in "
                self._refuse(matched, ups[0], f"{why}gate_up_proj", f"{name}.gate_up_proj")
                place(matched, downs[0], f"{name}.down_proj")
                return
            if len(ups) == 2:
                gate = [it for it in ups if self._is_gate(it, ups)]
                if len(gate) == 1:
                    place(matched, gate[0], f"{name}.gate_proj")
                    ups.remove(gate[0])
        if len(ups) != 1 or len(downs) != 1:
            for owner in found:
                why = f"{len(found)} matrices are in no attention; 2 of a feed-forward, or 3, fit"
                self._refuse(matched, owner, why)
            return
        # Of w1, w2 and w3 the second is the last one that is applied.
        compare = self._compare if len(found) == 2 else self._compare_words
        if compare(ups[0], downs[0]) > 0:
            for owner in found:
                why = "its name and its shape contradict each other: it may be stored as (in, out)"
                self._refuse(matched, owner, why)
            return
        place(matched, ups[0], f"{name}.up_proj")
        place(matched, downs[0], f"{name}.down_proj")

    def _is_gate(self, owner: Owner, both: Sequence[Owner]) -> bool:
        words = [*map(words_of, (self.rests[it.path].rpartition(".")[2] for it in both))]
        mine = words_of(self.rests[owner.path].rpartition(".")[2])
        if any("gate" in each for each in words):
            return "gate" in mine
        return words in ([["w", "1"], ["w", "3"]], [["wi", "0"], ["wi", "1"]]) and mine == words[0]

    def _compare(self, one: Owner, other: Owner) -> int:
        """Below 0 if the first is named as the first of two, above 0 for the second, else 0."""
        if by_words := self._compare_words(one, other):
            return by_words
        mine, others = self._numbers(one), self._numbers(other)
        return (mine > others) - (mine < others) if mine and others else 0

    def _compare_words(self, one: Owner, other: Owner) -> int:
        return self._rank(one) - self._rank(other)

    def _numbers(self, owner: Owner) -> list[int]:
        """The numbers of a name."""
        return [int(number) for number in re.findall("[0-9]+", self.rests[owner.path])]

    def _rank(self, owner: Owner) -> int:
        """0 for what a name says comes first, 2 for what comes second, 1 if it says nothing."""
        words = self.rests[owner.path].rpartition(".")[2] or self.rests[owner.path]
        named = {*words_of(words)}
        return 0 if named & _FIRST else 2 if named & _SECOND else 1

    def _place_norms(self, matched: Matched, norms: Sequence[Owner]) -> None:
        sublayers = [*self.attentions, "feed_forward"]
        if len(norms) != len(sublayers):
            for owner in norms:
                why = f"a layer has {len(norms)} norms; {len(sublayers)} were expected"
                self._refuse(matched, owner, why)
            return
        placed: dict[str, Owner] = {}
        left = []
        for owner in sorted(norms, key=lambda it: bool(_AFTER & self._words(it))):
            name = self._norm_by_words(owner, placed)
            if name is None:
                left.append(owner)
            elif name in sublayers and name not in placed:
                placed[name] = owner
            else:
                why = "words of the norms do not show which sublayer each is of"
                why += (
                    ", without norm_placement"
                    if self.placement is None
                    else (f", with norm_placement {self.placement}")
                )
                for each in norms:
                    self._refuse(matched, each, why)
                return
        rest = [name for name in sublayers if name not in placed]
        if len(rest) > 1 and not self.ordered:
            left.sort(key=self._numbers)
        if len(rest) > 1 and not self._in_order(rest, left):
            for owner in left:
                why = "names do not show which sublayer it is of"
                self._refuse(matched, owner, why if self.ordered else f"{why}, and {_SORTED}")
        else:
            placed |= dict(zip(rest, left, strict=True))
        for name, owner in placed.items():
            place(matched, owner, f"{self.name}.{name}_residual.norm")

    def _words(self, owner: Owner) -> set[str]:
        return {*words_of(self.rests[owner.path])}

    def _norm_by_words(self, owner: Owner, placed: Mapping[str, Owner]) -> str | None:
        """The sublayer that words say; None if they say nothing, "" if they leave it open."""
        words = self._words(owner)
        if words & _FEED_FORWARD or owner.path.endswith("final_layer_norm"):
            sublayer = "feed_forward"
        elif words & _ATTENTION:
            sublayer = self._attention_of(words)
        else:
            sublayer = None
        is_post = self.placement in ("post", "res_post")
        if words & _AFTER:
            if self.placement is None or not sublayer:
                return ""
            if is_post:
                return sublayer
            following = self._following(sublayer)
            named = following in placed and not words & _SELF  # after both attentions
            return self._following(following) if named else following
        if words & _BEFORE and is_post:
            return ""
        if sublayer is None and "input" in words:
            return "self_attn"
        return sublayer

    def _attention_of(self, words: set[str]) -> str:
        """The attention that words say; "" if they leave it open."""
        if "cross_attn" not in self.attentions:
            return "self_attn"
        common = {*self.attentions["self_attn"].words} & {*self.attentions["cross_attn"].words}
        if words & _CROSS - common:
            return "cross_attn"
        return "self_attn" if words & _SELF or not words & _CROSS else ""

    def _following(self, sublayer: str) -> str:
        """The sublayer that comes after another one; "" after the last."""
        order = [*self.attentions, "feed_forward", ""]
        return order[order.index(sublayer) + 1] if sublayer else ""

    def _in_order(self, sublayers: Sequence[str], norms: Sequence[Owner]) -> bool:
        """Whether norms are in the order of the sublayers, by their numbers or in the file."""
        numbers = [self._numbers(it) for it in norms]
        if not self.ordered:
            # GPT-2 has ln_1 and ln_2 without a cross-attention, whose norm may be added as ln_3.
            paths = [self.rests[it.path].lower() for it in norms]
            added = any(re.search(r"(?<![a-z])ln[\W_]*[0-9]", path) for path in paths)
            if added and len(sublayers) > 2:
                return False
            return all(numbers) and len({*map(tuple, numbers)}) == len(numbers)
        firsts = [it.order for name, it in self.attentions.items() if name in sublayers]
        firsts += [it.order for it in self.feed_forward[:1] if "feed_forward" in sublayers]
        return firsts == sorted(firsts) and all(
            one < two for one, two in itertools.pairwise(numbers) if one and two
        )

    def _refuse(self, matched: Matched, owner: Owner, why: str, likely: str = "") -> None:
        for kind, key in owner.keys.items():
            matched.unplaced[key] = why
            if likely:
                matched.likely[key] = _name_of(owner, kind, likely)


def _inputs(owner: Owner) -> int:
    return owner.shape[0 if owner.transposed else 1]


def _outputs(owner: Owner) -> int:
    return owner.shape[1 if owner.transposed else 0]


def place(matched: Matched, owner: Owner, name: str) -> None:
    """Give the tensors of a module their own names."""
    for kind, key in owner.keys.items():
        matched.names[key] = _name_of(owner, kind, name)


def _name_of(owner: Owner, kind: str, name: str) -> str:
    return f"{name}.{kind}" + (".T" if kind == "weight" and owner.transposed else "")


def refuse_square(matched: Matched, owners: Sequence[Owner]) -> None:
    """Refuse square matrices of a file that has matrices of both orders, or may have."""
    for owner in owners:
        key = owner.keys.get("weight", "")
        square = len(owner.shape) == 2 and owner.shape[0] == owner.shape[1]
        if square and owner.leaf != KERNEL and (name := matched.names.pop(key, None)) is not None:
            matched.likely[key] = f"{name}.T"
            matched.unplaced[key] = (
                "other matrices are stored as (in, out), as .T says; a square one does not show it"
            )


def is_norm(owner: Owner, width: int) -> bool:
    """Whether a module has vectors of E values, or one number for all, and no matrix."""
    return owner.shape in ((width,), (1,)) and {*owner.keys} <= {"weight", "bias"}
