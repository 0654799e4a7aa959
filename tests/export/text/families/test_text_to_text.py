"""Whole folders, model and tokenizer, from text to text: against transformers.

`TEXT_TO_TEXT=20 pytest …` does all families, not the first alone.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support import hf_models
from tests.support import tokenizer_folders as folders
from tests.support.command import invoke
from tfexport.export import export
from tfexport.runtime import Translator

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]
DONE = int(os.environ.get("TEXT_TO_TEXT", "1"))
MOVED, PIECES = "sentencepiece.bpe.model", "spiece.model"
FIRST = ["<s>", "<pad>", "</s>", "<unk>"]
TEXTS = [
    "the house is small.",
    "Is the world, </s> <pad> naïve?",
    " we  don't  ",
    "x",
    "the house </s>",
]


@dataclass(frozen=True)
class Case:
    """A folder's tokenizer, and how it is called.

    Attributes:
        family: of the model.
        make: the tokenizer's files.
        source: language code in this project.
        target: likewise.
        form: of a code in the tokenizer of transformers.
        forced: the target language is the first token, not the start token.
    """

    family: str
    make: Callable[[Path], Path]
    source: str | None = None
    target: str | None = None
    form: str = "{}"
    forced: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)


def model_file(family: str, name: str, **settings: Any) -> Callable[[Path], Path]:
    return lambda folder: folders.model_file_folder(folder, family, name, **settings)


def merges(family: str, first: list[str]) -> Callable[[Path], Path]:
    return lambda folder: folders.merges_folder(folder, family, first)


MBART50 = model_file("mbart", MOVED, tokenizer_class="MBart50Tokenizer")
CASES = {
    "marian": Case("marian", folders.marian_folder, target="deu"),
    "m2m100": Case("m2m_100", folders.m2m100_folder, "de", "fr", "{}", True, {"vocab_size": 201}),
    "mbart": Case("mbart", model_file("mbart", MOVED), "de_DE", "ro_RO"),
    "mbart50": Case("mbart", MBART50, "de_DE", "ro_RO", "{}", True),
    "plbart": Case("plbart", folders.plbart_folder, "python", "en_XX", "__{}__"),
    "bart": Case("bart", merges("bart", [*FIRST, "<mask>"])),
    "pegasus": Case("pegasus", model_file("pegasus", PIECES)),
    "t5": Case("t5", model_file("t5", PIECES)),
    "madlad": Case(
        "t5",
        folders.madlad_folder,
        config={
            "feed_forward_proj": "gated-gelu",
            "tie_word_embeddings": False,
            "decoder_start_token_id": 0,
        },
    ),
    "byt5": Case("t5", folders.byt5_folder, config={"tokenizer_class": "ByT5Tokenizer"}),
    "blenderbot-small": Case(
        "blenderbot-small",
        folders.blenderbot_small_folder,
        config={"decoder_start_token_id": 1},
    ),
    "blenderbot": Case("blenderbot", merges("blenderbot", ["<s>", "</s>", "<pad>", "<unk>"])),
}


def complete(case: Case, folder: Path, tokenizer: Any) -> Any:
    """Add a model of the tokenizer's size and special ids to its folder."""
    ids = {
        f"{name}_token_id": getattr(tokenizer, f"{name}_token_id", None)
        for name in ("pad", "eos", "bos")
    }
    values = {name: number for name, number in ids.items() if number is not None}
    if case.family == "marian":
        values |= {"decoder_start_token_id": ids["pad_token_id"], "forced_eos_token_id": 0}
    values = {"vocab_size": len(tokenizer), **values, **case.config}
    (folder / "config.json").unlink()
    model = hf_models.make_model(case.family, 3, **values)
    hf_models.save_folder(model, folder)
    return model


def expected_texts(case: Case, model: Any, tokenizer: Any) -> list[str]:
    settings = {"max_new_tokens": 12, "num_beams": 1, "do_sample": False}
    texts = TEXTS
    if case.family == "marian":
        texts = [f">>{case.target}<< {text}" for text in texts]
    elif case.target is not None:
        tokenizer.src_lang = case.form.format(case.source)
        number = tokenizer.convert_tokens_to_ids(case.form.format(case.target))
        if case.family == "m2m_100":  # whose tokens have ids only as languages
            number = tokenizer.get_lang_id(case.target)
        settings["forced_bos_token_id" if case.forced else "decoder_start_token_id"] = number
    rows = [model.generate(**tokenizer(text, return_tensors="pt"), **settings)[0] for text in texts]
    return [tokenizer.decode(row, skip_special_tokens=True) for row in rows]


@pytest.mark.usefixtures("no_search_graphs")
@pytest.mark.parametrize("name", [*CASES][:DONE])
def test_text_is_that_of_transformers(tmp_path: Path, name: str) -> None:
    transformers = pytest.importorskip("transformers")
    case = CASES[name]
    folder = case.make(tmp_path / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = complete(case, folder, tokenizer)
    expected = expected_texts(case, model, tokenizer)
    export(folder, tmp_path / "bundle", verify=False)
    manifest = json.loads((tmp_path / "bundle" / "manifest.json").read_text())
    assert (manifest.get("languages") is not None) == (case.target is not None)
    translator = Translator(tmp_path / "bundle")
    found = translator.translate(
        TEXTS,
        max_length=12,
        beam_size=1,
        source_language=case.source,
        target_language=case.target,
    )
    assert [result.text for result in found] == expected


@pytest.mark.usefixtures("few_shapes", "no_search_graphs")
def test_samples_are_in_the_languages_that_the_command_names(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    case = CASES["m2m100"]
    folder = case.make(tmp_path / "model")
    complete(case, folder, transformers.AutoTokenizer.from_pretrained(folder))
    samples = tmp_path / "samples.txt"
    samples.write_text("the house is small.\nx\n", encoding="utf-8")
    given = ["onnx", "--checkpoint", folder, "-o", tmp_path / "q.bundle", "--quantize=int8",
             "--samples", samples]  # fmt: skip
    done = invoke(*given, "--no-verify")
    assert done.exit_code == 2
    assert "the model needs a target language: --target-language is" in done.stderr
    assert "exporting" not in done.stderr, "it is told before any work"
    assert not (tmp_path / "q.bundle").exists()
    done = invoke(*given, "--source-language=de", "--target-language=fr")
    assert done.exit_code == 0, done.output
    assert "tokens agree" in done.stdout
    manifest = json.loads((tmp_path / "q.bundle" / "manifest.json").read_text())
    assert manifest["parity"]["inputs"] == ["drawn", "samples"]
    assert manifest["origins"]["max_length"] == "transformers", "its files name no length"
