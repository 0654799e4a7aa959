"""Graphs with text in and out refuse the tokenizers of Hugging Face folders by name."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import tokenizer_folders as folders
from tfexport.errors import TokenizerError
from tfexport.export.text.text_graphs import check_reproduced
from tfexport.export.text.tokenizer_files import choose_tokenizers
from tfexport.model_src.config import TransformerConfig

pytest.importorskip("onnxruntime_extensions")
CONFIG = TransformerConfig(
    8, 2, 1, 1, 12, pad_id=1, bos_id=0, eos_id=2, unk_id=3, source_vocab_size=400,
    target_vocab_size=400, add_source_eos=True,
)  # fmt: skip


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (folders.marian_folder, "its languages are ids around a text"),
        (lambda folder: folders.marian_folder(folder, separate=True), "pieces is not reproduced"),
        (folders.byt5_folder, "bytes is not reproduced"),
        (folders.blenderbot_small_folder, "lower_bpe is not reproduced"),
        (lambda f: folders.model_file_folder(f, "t5", "spiece.model"), "Unigram with Sequence"),
    ],
)
def test_kinds_that_are_not_reproduced_are_named(
    tmp_path: Path, make: Callable[[Path], Path], message: str
) -> None:
    files = choose_tokenizers(folder=make(tmp_path))
    with pytest.raises(TokenizerError, match=message):
        check_reproduced(files, CONFIG)
