"""Special ids that a vocabulary contradicts, and words that text is never split into: warnings."""

import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import REPOSITORY
from tests.support.tutorial_text import SPECIALS
from tfexport.cli.console import spell
from tfexport.errors import TfexportWarning
from tfexport.export.text.tokenizer_files import Splits, choose_tokenizers
from tfexport.model_src.config import TransformerConfig

FRAMING: dict[str, Any] = {"unk_id": 0, "pad_id": 1, "bos_id": 2, "eos_id": 3,
                           "add_source_bos": True, "add_source_eos": True}  # fmt: skip


def warned(
    folder: Path, words: list[str], split: str | None = None, **config: Any
) -> list[TfexportWarning]:
    """The warnings about one list of words for both sides."""
    (folder / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    sizes = {"source_vocab_size": len(words), "target_vocab_size": len(words)}
    checked = TransformerConfig(8, 2, 1, 1, 12, **{**FRAMING, **sizes, **config})
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        choose_tokenizers(folder / "vocab.txt", splits=Splits(split)).check(checked)
    found = [each.message for each in told if isinstance(each.message, TfexportWarning)]
    assert len(found) == len(told)
    return found


@pytest.mark.parametrize(
    ("words", "config"),
    [
        ([*SPECIALS, "der", "die"], {}),
        (["[UNK]", "[PAD]", "<s>", "</s>", "der"], {}),
        (["<|unk|>", "__pad__", "<SOS>", "<end>", "der"], {}),
        # Names that say nothing, where none says otherwise.
        (["<unk>", "<pad>", "<2de>", "<!>", "der"], {}),
        # Start tokens of the source are not looked at where none is added.
        (["<pad>", "<s>", "</s>", "<unk>"], {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3}),
    ],
)
def test_vocabulary_that_fits_its_special_ids_is_not_warned_of(
    tmp_path: Path, words: list[str], config: dict[str, Any]
) -> None:
    assert warned(tmp_path, words, **config) == []


def test_warning_names_ids_and_words_and_what_to_set(tmp_path: Path) -> None:
    words = ["<unk>", "<pad>", "der", "<eos>", "die", "<bos>"]
    source, target = warned(tmp_path, words)
    assert str(source) == (
        f"{tmp_path / 'vocab.txt'}: bos_id is 2, which is 'der' in the source vocabulary, but "
        "'<bos>' has the id 5; if that is correct, set it with settings=['bos_id=5']"
    )
    assert target.message.spelled(spell).endswith("correct, set it with --set bos_id=5")
    assert "target vocabulary" in str(target)


@pytest.mark.parametrize(
    ("words", "config", "expected"),
    [
        (
            ["<pad>", "<unk>", "<bos>", "<eos>"],
            {"add_source_bos": False},
            {
                "unk_id is 0, which is '<pad>'",
                "pad_id is 1, which is '<unk>'",
                "'<unk>' has the id 1",
            },
        ),
        (
            ["die", "der", "das", "ein"],
            {},
            {
                "bos_id is 2, which is 'das' in the target vocabulary; set the correct id",
                "pad_id is 1",
            },
        ),
        # The end token is where the start token should be, and there is no other start token.
        (
            ["<unk>", "<pad>", "<eos>", "x"],
            {},
            {"bos_id is 2, which is '<eos>'", "'<eos>' has the id 2"},
        ),
    ],
)
def test_every_special_id_is_looked_at(
    tmp_path: Path, words: list[str], config: dict[str, Any], expected: set[str]
) -> None:
    told = "\n".join(map(str, warned(tmp_path, words, **config)))
    assert all(part in told for part in expected), told


def test_warned_of_if_most_words_are_such_that_text_is_never_split_into(tmp_path: Path) -> None:
    assert warned(tmp_path, [*SPECIALS, "Der", "Hund", "bellt", "."], "basic_english") == []
    told = warned(tmp_path, [*SPECIALS, "Der", "Hund", "bellt"], "basic_english")
    assert [str(each).split(": ", 1)[1].split(";")[0] for each in told] == [
        "2 of 3 words can never match, such as 'Der', which is split into ['der']"
    ]


def test_default_index_of_a_vocabulary_object_is_held_against_unk_id() -> None:
    folder = REPOSITORY / "tests" / "fixtures" / "torchtext"
    files = choose_tokenizers(folder / "vocab-0.18.pt", splits=Splits("whitespace"))
    sizes = {"source_vocab_size": 17, "target_vocab_size": 17}
    files.check(TransformerConfig(8, 2, 1, 1, 12, **{**FRAMING, **sizes}))
    wrong = TransformerConfig(8, 2, 1, 1, 12, **{**FRAMING, **sizes, "unk_id": 4})
    with pytest.warns(TfexportWarning, match="unk_id is 4, but the .* id 0; .*unk_id=0"):
        files.check(wrong)
