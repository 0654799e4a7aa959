"""Letters with marks after them, compared with SentencePiece itself."""

import random
import struct
import unicodedata
from pathlib import Path

import pytest

from tfexport.runtime.text.charsmap import Charsmap
from tfexport.runtime.text.tokenizer import JsonTokenizer

TEXT = "Tiếng Việt đã được người Pháp ghi ế ệ ợ ữ ằ ẵ 한국어 문장 각각 パピプ ガギ バス é ü ö ñ å"
# Half-width letters with their marks, other orders of marks, and what has no composed form.
MORE = (
    "\uff8a\uff9e\uff7d \uff76\uff9e a\u0323\u0302 q\u0301 \u1112\u1161\u11ab e\u0302\u0301 "
    "e\u0301\u0302 o\u031b\u0323 \ufb01 \u2460 \u0301"
)
WORDS = TEXT.split()


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of SentencePiece with its usual normalization, and its tokenizer.json."""
    sentencepiece = pytest.importorskip("sentencepiece")
    pytest.importorskip("google.protobuf")
    tokenizers = pytest.importorskip("tokenizers")
    from sentencepiece import sentencepiece_model_pb2 as proto

    folder, rng = tmp_path_factory.mktemp("charsmap"), random.Random(0)
    lines = (" ".join(rng.choices(WORDS, k=6)) for _ in range(400))
    (folder / "text").write_text("\n".join(lines), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "text"), model_prefix=str(folder / "spiece"), vocab_size=120,
        character_coverage=1.0, minloglevel=2, hard_vocab_limit=False,
    )  # fmt: skip
    model = proto.ModelProto()  # type: ignore[attr-defined]
    model.ParseFromString((folder / "spiece.model").read_bytes())
    made = tokenizers.Tokenizer(
        tokenizers.models.Unigram([(each.piece, each.score) for each in model.pieces], 0)
    )
    spaces = tokenizers.normalizers.Replace(tokenizers.Regex(" {2,}"), " ")
    rules = tokenizers.normalizers.Precompiled(model.normalizer_spec.precompiled_charsmap)
    made.normalizer = tokenizers.normalizers.Sequence([rules, spaces])
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    made.save(str(folder / "tokenizer.json"))
    return folder


def test_ids_are_those_of_sentencepiece(folder: Path) -> None:
    """Of tokenizers alone, two of three such texts have others: marks are lost, or unknown."""
    import sentencepiece

    whole = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spiece.model"))
    tokenizer = JsonTokenizer(folder / "tokenizer.json")
    for seed in range(300):
        rng = random.Random(seed)
        text = " ".join(rng.choices([*WORDS, *MORE.split()], k=rng.randint(1, 6)))
        for form in ("NFC", "NFD", "NFKD"):
            given = unicodedata.normalize(form, text)
            assert tokenizer.encode(given) == whole.encode(given), (form, given)


def test_pieces_are_parts_of_the_text_itself(folder: Path) -> None:
    tokenizer = JsonTokenizer(folder / "tokenizer.json")
    for text in ("Tiếng Việt ghi ế", "한국어 각각 é"):
        decomposed = unicodedata.normalize("NFD", text)
        pieces = [unicodedata.normalize("NFC", each) for each in tokenizer.split(decomposed)]
        assert pieces == tokenizer.split(text)
        assert "".join(tokenizer.split(decomposed)) == decomposed.replace(" ", "")


@pytest.mark.parametrize(
    "blob", [b"", b"\1\0\0\0\0\0\0\0", struct.pack("<I", 400) + b"\0" * 8, b"\3\0\0\0" + b"\0" * 9]
)
def test_damaged_rules_are_refused(blob: bytes) -> None:
    with pytest.raises(ValueError, match="charsmap"):
        Charsmap(blob)


@pytest.mark.parametrize("seed", range(5))
def test_rules_of_noise_end(seed: int) -> None:
    """Fails if a trie that leads nowhere is followed out of its bounds."""
    noise = random.Random(seed).randbytes(400)
    rules = Charsmap(struct.pack("<I", 400) + noise + b"a\0b\0")
    for text in ("e\u0301", "\u1112\u1161\u11ab", "\uff8a\uff9e" * 20):
        assert isinstance(rules.compose(text), str)


def test_a_letter_with_very_many_marks_is_not_copied_at_each(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if a rule is looked up in a copy of what follows: time would grow with the square."""
    rules = JsonTokenizer(folder / "tokenizer.json")._charsmap
    assert rules is not None
    longest, lengths = rules._longest, list[int]()

    def looked_up(letters: str, start: int) -> tuple[int, str]:
        lengths.append(len(letters))
        return longest(letters, start)

    monkeypatch.setattr(rules, "_longest", looked_up)
    assert rules.compose("e" + "\u0301" * 1000) == "\xe9" + "\u0301" * 999
    assert lengths == [1001] * 1000
