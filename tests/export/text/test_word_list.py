"""Lists of words that would decode with the wrong ids, refused before anything is exported."""

from pathlib import Path
from typing import Any

import pytest

from tfexport.errors import TokenizerError
from tfexport.export.text.tokenizer_files import choose_tokenizers
from tfexport.model_src.config import TransformerConfig

SPECIAL = ["<pad>", "<s>", "</s>"]


def check(folder: Path, words: list[str], **config: Any) -> None:
    """Hold one list for both sides against a model."""
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    sizes = {"source_vocab_size": len(words), "target_vocab_size": len(words)}
    values = {"pad_id": 0, "bos_id": 1, "eos_id": 2, **sizes, **config}
    choose_tokenizers(folder / "vocab.txt", None, None).check(
        TransformerConfig(8, 2, 1, 1, 12, **values)
    )


def test_list_with_a_line_for_every_id_is_taken(tmp_path: Path) -> None:
    check(tmp_path, [*SPECIAL, "<unk>", "a", "b", "<unused0>"], unk_id=3)
    check(tmp_path, [*SPECIAL, "a", "b"])


@pytest.mark.parametrize(
    ("words", "config", "message"),
    [
        (
            ["a", "b", "c"],
            {"source_vocab_size": 6},
            "3 lines for the 6 ids of the source vocabulary",
        ),
        (
            ["a", "b", "c"],
            {"target_vocab_size": 5},
            "3 lines for the 5 ids of the target vocabulary",
        ),
        (["a", "b", "c"], {"source_vocab_size": 2, "bos_id": 0, "eos_id": 0}, "ids go up to 2"),
        ([*SPECIAL, *(f"w{i} {i}" for i in range(9))], {}, r"9 lines are a word and a count.*cut"),
        ([*SPECIAL, "New York", "a b"], {}, r"line 4, 'New York' \(and 1 more lines\), can never"),
        ([*SPECIAL, "", "a"], {}, "line 4, '', can never match"),
        ([*SPECIAL, "<unk>"], {}, "line 4 is '<unk>', but the model has no unk_id.*'unk_id=3"),
        ([*SPECIAL, "a", "[UNK]"], {}, "line 5 is '.UNK.', but the model has no unk_id.*'unk_id=4"),
    ],
)
def test_list_that_cannot_be_the_models_is_refused(
    tmp_path: Path, words: list[str], config: dict[str, Any], message: str
) -> None:
    with pytest.raises(TokenizerError, match=message):
        check(tmp_path, words, **config)


def test_all_problems_of_a_list_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="3 problems"):
        check(tmp_path, ["<pad>", "<unk>", "a b"], source_vocab_size=5, target_vocab_size=5)


def test_target_may_hold_words_with_spaces(tmp_path: Path) -> None:
    for name, words in (("s", [*SPECIAL, "a"]), ("t", [*SPECIAL, "New York"])):
        (tmp_path / name).write_text("\n".join(words))
    config = TransformerConfig(
        8, 2, 1, 1, 12, source_vocab_size=4, target_vocab_size=4, pad_id=0, bos_id=1, eos_id=2
    )
    choose_tokenizers(None, tmp_path / "s", tmp_path / "t").check(config)
