"""Tokenizers that transformers makes of their parts, by their classes.

It takes a vocabulary and the rules of normalization from the files, and everything else from the
class; so does this, also where a tokenizer.json holds something else.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfexport.errors import TokenizerError
from tfexport.export.text.families.codes import MBART, MBART50
from tfexport.export.text.families.folder import ModelFolder
from tfexport.export.text.families.parts import Parts, Scored
from tfexport.export.text.families.special import SpecialTokens

_FAIRSEQ = {"bos": "<s>", "eos": "</s>", "sep": "</s>", "cls": "<s>", "unk": "<unk>"}
_FAIRSEQ |= {"pad": "<pad>", "mask": "<mask>"}
_MASK_LEFT = {"lstrip": True, "rstrip": False}

Build = Callable[[Any, Parts, ModelFolder], Any]


@dataclass(frozen=True)
class Recipe:
    """How a class of tokenizers is made.

    Attributes:
        kind: of the model, "Unigram" or "BPE".
        files: that it is made of where there is no tokenizer.json; none if it needs one.
        build: the library, parts and folder to a tokenizer without special tokens.
        special: parts and folder to the special tokens of the class.
    """

    kind: str
    files: Sequence[str]
    build: Build
    special: Callable[[Parts, ModelFolder], SpecialTokens]


def _spaced(library: Any, tokenizer: Any, words: bool) -> Any:
    """Add the pre-tokenizer and decoder for pieces that begin words with a mark."""
    spaces = library.pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always", split=True)
    split = [library.pre_tokenizers.WhitespaceSplit(), spaces]
    tokenizer.pre_tokenizer = library.pre_tokenizers.Sequence(split) if words else spaces
    tokenizer.decoder = library.decoders.Metaspace(
        replacement="▁", prepend_scheme="always", split=True
    )
    return tokenizer


def _normalizer(library: Any, charsmap: bytes | None) -> Any:
    one_space = library.normalizers.Replace(library.Regex(" {2,}"), " ")
    begin = [] if charsmap is None else [library.normalizers.Precompiled(charsmap)]
    return library.normalizers.Sequence([*begin, one_space])


def _unigram(library: Any, scored: Sequence[Scored], unknown: int) -> Any:
    model = library.models.Unigram(list(scored), unk_id=unknown, byte_fallback=False)
    return library.Tokenizer(model)


def _name(folder: ModelFolder, name: str) -> str:
    return folder.named(name, _FAIRSEQ[name]) or _FAIRSEQ[name]


def _moved(parts: Parts, folder: ModelFolder, codes: Sequence[str]) -> list[Scored]:
    """Pieces with the ids of fairseq, and languages and a mask behind them."""
    if parts.in_order:
        if not any(piece in codes for piece, _ in parts.scored):
            raise TokenizerError(f"{parts.path}: its vocabulary has no language, such as en_XX.")
        return parts.scored
    first = [_name(folder, name) for name in ("bos", "pad", "eos", "unk")]
    behind = [*codes, _name(folder, "mask")]
    return [
        *((piece, 0.0) for piece in first),
        *parts.scored[3:],
        *((piece, 0.0) for piece in behind),
    ]


def _mbart(library: Any, parts: Parts, folder: ModelFolder) -> Any:
    # Without rules of normalization, as in transformers 5.
    tokenizer = _unigram(library, _moved(parts, folder, MBART), 3)
    return _spaced(library, tokenizer, words=True)


def _mbart50(library: Any, parts: Parts, folder: ModelFolder) -> Any:
    tokenizer = _unigram(library, _moved(parts, folder, MBART50), 3)
    tokenizer.normalizer = _normalizer(library, parts.charsmap)
    return _spaced(library, tokenizer, words=False)


def _nllb(library: Any, parts: Parts, folder: ModelFolder) -> Any:
    tokenizer = library.Tokenizer(
        library.models.BPE(
            vocab=parts.vocabulary, merges=parts.merges, dropout=None,
            unk_token=_name(folder, "unk"), fuse_unk=True, byte_fallback=False,
        )
    )  # fmt: skip
    if parts.charsmap is not None:
        tokenizer.normalizer = _normalizer(library, parts.charsmap)
    return _spaced(library, tokenizer, words=False)


def _pegasus_tokens(folder: ModelFolder) -> tuple[str | None, int]:
    sentence = folder.settings.get("mask_token_sent", "<mask_1>")
    return sentence if isinstance(sentence, str) else None, folder.count("offset", 103)


def _pegasus(library: Any, parts: Parts, folder: ModelFolder) -> Any:
    scored = parts.scored
    if not parts.in_order:
        settings, (_, offset) = folder.settings, _pegasus_tokens(folder)
        masks = [
            settings.get("mask_token", "<mask_1>"),
            settings.get("mask_token_sent", "<mask_2>"),
        ]
        first = [folder.named("pad", "<pad>"), folder.named("eos", "</s>"), *masks]
        scored = [(piece, 0.0) for piece in dict.fromkeys(first) if isinstance(piece, str)]
        scored += [(f"<unk_{i}>", -100.0) for i in range(2, offset)]
        scored += parts.scored[2:]
    unknown = folder.named("unk", "<unk>")
    if (unknown, 0.0) not in scored:
        raise TokenizerError(f"{parts.path}: its vocabulary has no {unknown!r} with a score of 0.")
    tokenizer = _unigram(library, scored, scored.index((str(unknown), 0.0)))
    tokenizer.normalizer = _normalizer(library, parts.charsmap)
    if parts.charsmap is None:
        line_ends = library.normalizers.Replace(library.Regex(r"\n"), " ")
        spaces = library.normalizers.Replace(library.Regex(" {2,}"), " ")
        tokenizer.normalizer = library.normalizers.Sequence([line_ends, spaces])
    return _spaced(library, tokenizer, words=False)


def _t5(library: Any, parts: Parts, folder: ModelFolder) -> Any:
    scored = [*parts.scored, *(() if parts.in_order else _sentinel_scores(folder))]
    tokenizer = _unigram(library, scored, 2)
    if parts.charsmap is not None:
        tokenizer.normalizer = library.normalizers.Precompiled(parts.charsmap)
    return _spaced(library, tokenizer, words=True)


def _sentinel_scores(folder: ModelFolder) -> list[Scored]:
    count: int = folder.count("extra_ids", 100)
    return [(f"<extra_id_{i}>", 0.0) for i in range(count - 1, -1, -1)]


def _byte_level(prefix: bool) -> Build:
    def build(library: Any, parts: Parts, folder: ModelFolder) -> Any:
        tokenizer = library.Tokenizer(
            library.models.BPE(
                vocab=parts.vocabulary, merges=parts.merges, dropout=None,
                continuing_subword_prefix="", end_of_word_suffix="", fuse_unk=False,
            )
        )  # fmt: skip
        space = folder.setting("add_prefix_space", prefix, bool)
        tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=space)
        tokenizer.decoder = library.decoders.ByteLevel()
        return tokenizer

    return build


def _further(parts: Parts, folder: ModelFolder) -> list[Any]:
    """Special tokens of a .model file, or of an older folder's special_tokens_map.json."""
    if parts.marked is not None:
        return [
            {"__type": "AddedToken", "content": piece, "normalized": False, "special": special}
            for piece, special in parts.marked
        ]
    return list(folder.extra or ())


def _behind(codes: Sequence[str], first: bool) -> Callable[[Parts, ModelFolder], SpecialTokens]:
    def special(parts: Parts, folder: ModelFolder) -> SpecialTokens:
        further = _further(parts, folder)
        if first:
            return SpecialTokens(_FAIRSEQ, _MASK_LEFT, [*codes, *further])
        named = {name: token for name, token in _FAIRSEQ.items() if name != "bos"}
        return SpecialTokens(named, _MASK_LEFT, [*further, *codes])

    return special


def _pegasus_special(parts: Parts, folder: ModelFolder) -> SpecialTokens:
    sentence, offset = _pegasus_tokens(folder)
    further = _further(parts, folder)
    extra = [] if sentence is None or sentence in further else [sentence]
    extra += [f"<unk_{i}>" for i in range(2, offset)]
    named = {"pad": "<pad>", "eos": "</s>", "unk": "<unk>", "mask": "<mask_2>"}
    return SpecialTokens(named, None, extra)


def _t5_special(parts: Parts, folder: ModelFolder) -> SpecialTokens:
    count: int = folder.count("extra_ids", 100)
    further = _further(parts, folder)
    if not any("<extra_id_" in str(token) for token in further):
        further += [f"<extra_id_{i}>" for i in range(count)]
    return SpecialTokens({"eos": "</s>", "unk": "<unk>", "pad": "<pad>"}, None, further)


def _simple(mask: Mapping[str, bool] | None) -> Callable[[Parts, ModelFolder], SpecialTokens]:
    return lambda parts, folder: SpecialTokens(_FAIRSEQ, mask, _further(parts, folder))


_MERGED, _FAIRSEQ_FILE, _PIECES = (
    ["vocab.json", "merges.txt"],
    ["sentencepiece.bpe.model"],
    ["spiece.model"],
)
_ROBERTA = Recipe("BPE", _MERGED, _byte_level(False), _simple(None))
RECIPES: Mapping[str, Recipe] = {
    "RobertaTokenizer": _ROBERTA,
    "BartTokenizer": _ROBERTA,
    "BlenderbotTokenizer": Recipe(
        "BPE", _MERGED, _byte_level(True), _simple({**_MASK_LEFT, "normalized": False})
    ),
    "MBartTokenizer": Recipe("Unigram", _FAIRSEQ_FILE, _mbart, _behind(MBART, True)),
    "MBart50Tokenizer": Recipe("Unigram", _FAIRSEQ_FILE, _mbart50, _behind(MBART50, False)),
    "NllbTokenizer": Recipe(
        "BPE", [], _nllb, _simple({"normalized": True, "lstrip": True, "special": True})
    ),
    "PegasusTokenizer": Recipe("Unigram", _PIECES, _pegasus, _pegasus_special),
    "T5Tokenizer": Recipe("Unigram", _PIECES, _t5, _t5_special),
}
