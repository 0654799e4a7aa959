"""The model that ships: its tokens through the torch-free runtime are eager PyTorch's, all of them.

The oracle is torch.nn.Transformer on the shipped weights upcast to float32, with the tutorial's
uncached greedy loop, one sentence at a time.
"""

import json
from pathlib import Path

import pytest
import sacrebleu
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from tests import tutorial
from tfexport.export import export_bundle
from tfexport.runtime import Translator

LIMIT = 60


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory, demo_folder: Path) -> Path:
    path = tmp_path_factory.mktemp("demo") / "de-en.bundle"
    export_bundle(demo_folder, path)
    return path


@pytest.fixture(scope="module")
def pairs(demo_folder: Path) -> list[list[str]]:
    lines = (demo_folder / "test.tsv").read_text(encoding="utf-8").splitlines()
    return [line.split("\t") for line in lines]


def eager(demo_folder: Path, rows: list[list[int]]) -> list[list[int]]:
    config = json.loads((demo_folder / "config.json").read_text())
    model = tutorial.TutorialModel(
        source_size=6000,
        target_size=6000,
        d_model=256,
        num_heads=config["num_heads"],
        encoder_layers=3,
        decoder_layers=3,
        d_ff=512,
        length=512,
    )
    state = load_file(demo_folder / "model.safetensors")
    assert {tensor.dtype for tensor in state.values()} == {torch.float16}
    model.load_state_dict({key: tensor.float() for key, tensor in state.items()})
    model.eval()
    return [tutorial.greedy(model, row, LIMIT, config["bos_id"], config["eos_id"]) for row in rows]


def test_all_913_sentences_decode_token_by_token_as_in_eager_pytorch(
    bundle: Path, demo_folder: Path, pairs: list[list[str]]
) -> None:
    tokenizer = Tokenizer.from_file(str(demo_folder / "tokenizer.json"))
    rows = [[2, *tokenizer.encode(pair[0]).ids, 3] for pair in pairs]
    assert len(rows) == 913
    expected = eager(demo_folder, rows)
    translator = Translator(bundle)
    assert [translator.encode(pair[0]) for pair in pairs] == rows
    results = translator.translate([pair[0] for pair in pairs], max_length=LIMIT)
    assert [result.hypotheses[0].tokens for result in results] == expected
    assert [result.text for result in results] == [tokenizer.decode(row) for row in expected]
    bleu = sacrebleu.corpus_bleu([str(r.text) for r in results], [[pair[1] for pair in pairs]])
    assert bleu.score == pytest.approx(54.0, abs=0.1)
