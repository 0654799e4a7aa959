"""Folders of transformers that no layout reads, exported by the forward of their own class."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.export.transformers_folders.families import FAMILIES, Row, draw_inputs, make_model
from tfexport.export import ExportResult, export, verify
from tfexport.runtime import Translator

transformers = pytest.importorskip("transformers", reason="make optional installs it")
pytestmark = [pytest.mark.peers, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

TOKENS = 12
# transformers' own forward over a whole prefix differs there from its own steps.
REFUSED = ("prophetnet",)
EXPORTED = [family for family in FAMILIES if family not in REFUSED]
# Their decoders are recognised.
DECODERS = (
    "whisper", "trocr", "gpt2", "donut", "pix2struct", "led", "longt5", "longt5_global",
    "bigbird_pegasus",
)  # fmt: skip
ENCODERS = ("whisper", "trocr", "gpt2")  # and the layers of their encoders


def generate(model: Any, row: Row, **options: Any) -> list[int]:
    """What transformers generates for a row, without the start and the end token."""
    given = {name: torch.from_numpy(array)[None] for name, array in row.items()}
    with torch.no_grad():
        # Whisper has a ``generate`` of its own, for audio of any length.
        found = transformers.GenerationMixin.generate(model, **given, **options)
    made: list[int] = found[0].tolist()[1:]
    ends = model.generation_config.eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    first = next((i for i, token in enumerate(made) if token in ends), len(made))
    return made[:first]


def exported(folder: Path, model: Any, **generation: Any) -> tuple[ExportResult, Translator]:
    for name, value in generation.items():
        setattr(model.generation_config, name, value)
    model.save_pretrained(folder)
    made = export(folder, folder.with_suffix(".bundle"), verify="quick")
    return made, Translator(made.path)


def tokens_of(translator: Translator, rows: Sequence[Row], **options: Any) -> list[list[int]]:
    return [list(made.hypotheses[0].tokens) for made in translator.generate_from(rows, **options)]


@pytest.mark.exhaustive  # the next one is of BERT, and tests/runtime/speech of Whisper
@pytest.mark.parametrize("family", EXPORTED)
def test_tokens_are_those_that_transformers_generates(tmp_path: Path, family: str) -> None:
    model = make_model(family)
    made, translator = exported(tmp_path / "model", model)
    model = type(model).from_pretrained(tmp_path / "model", attn_implementation="eager")
    assert made.manifest.module is not None
    assert made.manifest.module["found"]["state"]  # a step, not whole prefixes
    assert bool(made.manifest.states) == (family in DECODERS)
    assert (made.manifest.embedded_encoder is not None) == (family in ENCODERS)
    rows = draw_inputs(family, 5)
    for beams in (1, 4):
        wanted = [
            generate(model, row, num_beams=beams, max_length=TOKENS + 1, do_sample=False)
            for row in rows
        ]
        assert tokens_of(translator, rows, beam_size=beams, max_length=TOKENS) == wanted


@pytest.mark.exhaustive
def test_decoding_defaults_are_those_of_the_folder(tmp_path: Path) -> None:
    model = make_model("trocr", seed=3)
    settings = {
        "num_beams": 3, "max_length": 9, "length_penalty": 0.4, "no_repeat_ngram_size": 2,
        "suppress_tokens": [7, 11], "begin_suppress_tokens": [5, 9, 30], "min_length": 4,
        "eos_token_id": [4, 17, 21], "repetition_penalty": 1.3,
    }  # fmt: skip
    _, translator = exported(tmp_path / "model", model, **settings)
    rows = draw_inputs("trocr", 4)
    assert tokens_of(translator, rows) == [generate(model, row) for row in rows]


def write_tokenizer(folder: Path) -> None:
    """The files of a BERT's tokenizer, whose ids are those of the tiny models."""
    letters = "abcdefghijklmnopqrstu"
    words = ["[PAD]", "[UNK]", "[MASK]", "[CLS]", "[SEP]", *letters, *(f"##{c}" for c in letters)]
    (folder / "vocab.txt").write_text("\n".join(words))
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def test_rules_are_in_the_graph_and_the_tokenizer_in_the_bundle(tmp_path: Path) -> None:
    folder, model = tmp_path / "model", make_model("bert2bert", seed=1)
    settings = {
        "forced_bos_token_id": 6, "forced_eos_token_id": 4, "suppress_tokens": [8, 31],
        "max_length": 8,
    }  # fmt: skip
    folder.mkdir()
    write_tokenizer(folder)
    made, translator = exported(folder, model, **settings)
    rows = draw_inputs("bert2bert", 4)
    wanted = [generate(model, row) for row in rows]
    assert tokens_of(translator, rows) == wanted
    assert all(row[0] == 6 for row in wanted)
    beams = [generate(model, row, num_beams=4) for row in rows]
    assert tokens_of(translator, rows, beam_size=4) == beams
    assert made.manifest.generation["first_token"] == 6
    judge = transformers.AutoTokenizer.from_pretrained(folder)
    texts = ["Abc de", "fg, h", "u"]
    encoded = [judge(text, return_tensors="np") for text in texts]
    given = [
        {"input_ids": it.input_ids[0], "attention_mask": it.attention_mask[0]} for it in encoded
    ]
    decoded = [judge.decode(generate(model, row), skip_special_tokens=True) for row in given]
    found = translator.translate(texts)
    assert [result.text for result in found] == decoded
    assert [list(it.hypotheses[0].tokens) for it in found] == [generate(model, it) for it in given]


@pytest.mark.exhaustive
def test_verify_reads_the_folder_again(tmp_path: Path) -> None:
    folder, model = tmp_path / "model", make_model("bert2bert", seed=1)
    made, _ = exported(folder, model)
    assert verify(made.path, folder, level="quick").passed
    with torch.no_grad():
        model.decoder.bert.embeddings.LayerNorm.bias.add_(0.1)
    model.save_pretrained(folder)
    assert not verify(made.path, folder, level="quick").passed
