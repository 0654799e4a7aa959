"""Strings that tokenizers treat differently, drawn with a seed, and a comparison with a judge."""

import random
import re
from collections.abc import Sequence
from typing import Any

import sentencepiece

from tfexport.runtime.text.codec import without_own_end
from tfexport.runtime.text.tokenizer import Tokenizer

WORD = re.compile(r"[^\x00-\x20\x7f]+")
_PARTS = (
    "the house", "Is", "small", "WORLD", "naïve", "Straße", "don't", "we'll", "it 's",
    "a ' b", " . ", " , ", "!?", "...", "…", "“q”", "‘x’", "1234", "5.6", "€7,89", "½", "①",
    "ﬁ", "ＦＵＬＬ", "e\u0301", "\u0301", "Å", "Å", "İı", "ẞ", "Привет", "Ελλ", "日本語。",
    "中文，", "한국어", "नमस्ते", "שלום", "مرحبا", "😀", "👍🏽", "👨\u200d👩", "\u200b",
    "\u200d", "\ufeff", "\u00a0", "\u3000", "\u2028", " ", "  ", "     ", "\t", "\n", "\r\n",
    "\n\n", "\x00", "\x07", "\x7f", "\x85", "\u00ad", "▁", "▁▁a", "Ġ", "</s>", "<s>", "<pad>",
    "<unk>", "<mask>", "<mask_1>", "<mask_2>", "<unk_7>", "<n>", "__end__", "__start__",
    "__null__", "__unk__", "__newln__", "<extra_id_0>", "<extra_id_12>", "<extra_id_",
    ">>fra<<", ">>deu<<", ">>x", "<<", ">>xyz<< ", "__fr__", "__en__", "en_XX", "fr_XX",
    "eng_Latn", "fra_Latn", "__java__", "__en_XX__", "</S>", "< /s>", "</s", "@@", "@-@",
    "&amp;", "&#91;", "a&b", "http://example.org/a?b=c&d=[e]", "snake_case", "x" * 40,
    "ab" * 30, "\U0010ffff", "\ue000", "¨", "´", "ﷺ", "Ⅷ", "²", "ｶﾞ", "ﾟ", "\u1100\u1161",
    "\ufffd", "\ud7a3", "|", "[MASK]", "\\n", "\\",
)  # fmt: skip


def awkward_strings(count: int = 2000, seed: int = 17) -> list[str]:
    """Strings: the parts themselves, parts put together, and drawn characters."""
    draw = random.Random(seed)
    texts = ["", " ", *_PARTS]
    while len(texts) < count:
        kind = draw.random()
        if kind < 0.8:
            space = draw.choice(["", " ", " ", "  "])
            texts.append(space.join(draw.choices(_PARTS, k=draw.randint(2, 9))))
        else:
            texts.append("".join(chr(_character(draw)) for _ in range(draw.randint(1, 20))))
    return texts[:count]


def _character(draw: random.Random) -> int:
    while True:
        top = draw.choice([0x80, 0x80, 0x180, 0x600, 0x3100, 0x10000, 0x110000])
        found = draw.randrange(top)
        if not 0xD800 <= found < 0xE000:
            return found


def encode_differences(tokenizer: Tokenizer, judge: Any, target: bool = False) -> list[str]:
    """Awkward strings that a tokenizer encodes otherwise than one of transformers.

    Args:
        tokenizer: of a bundle.
        judge: of transformers.
        target: texts are those of the target side.
    """
    name, found = "text_target" if target else "text", []
    backend = getattr(judge, "backend_tokenizer", None)
    composes = backend is not None and '"Precompiled"' in backend.to_str()
    normalizer = sentencepiece.SentencePieceNormalizer(
        rule_name="nmt_nfkc", add_dummy_prefix=False, escape_whitespaces=False,
        remove_extra_whitespaces=False,
    )  # fmt: skip
    for text in awkward_strings():
        # SentencePiece keeps marks behind letters that a rule changes; transformers' library loses
        # them. Spaces stay: tokens are found before a text is normalized, some with spaces.
        asked = WORD.sub(lambda word: normalizer.normalize(word[0]), text) if composes else text
        expected = judge(**{name: asked}, add_special_tokens=False)["input_ids"]
        given = tokenizer.encode(text)
        if given != expected:
            found.append(f"{text!r} becomes {given} instead of {expected}")
        assert len(tokenizer.split(text)) == len(given)
    return found


def framing_differences(tokenizer: Tokenizer, judge: Any) -> list[str]:
    """Texts with special tokens at their ends that are framed otherwise than by transformers."""
    own, framed = judge("a", add_special_tokens=False)["input_ids"], judge("a")["input_ids"]
    at = next(i for i in range(len(framed)) if framed[i : i + len(own)] == own)
    before, after = framed[:at], framed[at + len(own) :]
    named = [judge.eos_token, judge.pad_token, judge.unk_token]
    special = [token for token in named if token]
    texts = [f"a{space}{token}{end}" for token in special for space in ("", " ")
             for end in ("", " ", token, special[0], "b")]  # fmt: skip
    found = []
    for text in [*texts, *special]:
        given = [*before, *without_own_end(tokenizer.encode(text), tokenizer, after), *after]
        if given != (expected := judge(text)["input_ids"]):
            found.append(f"{text!r} becomes {given} instead of {expected}")
    return found


def decode_differences(tokenizer: Tokenizer, judge: Any, ids: Sequence[int]) -> list[str]:
    """Rows that a tokenizer decodes otherwise: of encoded awkward strings, and of drawn ids."""
    draw = random.Random(3)
    rows = [tokenizer.encode(text) for text in awkward_strings()]
    rows += [draw.choices(ids, k=draw.randint(1, 12)) for _ in range(1000)]
    found = []
    for row in rows:
        given, expected = tokenizer.decode(row), judge.decode(row, skip_special_tokens=True)
        if given != expected:
            found.append(f"{row} becomes {given!r} instead of {expected!r}")
    return found


def corpus() -> list[str]:
    """Lines to train tokenizers on."""
    draw = random.Random(5)
    words = ["the", "house", "is", "small", "world", "naive", "don't", "we", "Is", "The", "house,"]
    words += [*"abcdefghijklmnopqrstuvwxyz", *"ABCDEFGH0123456789.,!?'()-", "été", "größe", "мир"]
    return [" ".join(draw.choices(words, k=draw.randint(3, 12))) for _ in range(800)]
