"""Model files of Marian-NMT: read without it, as its own mathematics has them."""

import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from tests.model_src.checkpoint.hostile_files import at_once
from tests.support.toolkits import marian_nmt
from tests.support.toolkits.drawn import both, difference
from tfexport.errors import CheckpointError, ConfigError
from tfexport.export.reference.original import ModuleReference
from tfexport.model_src import load_checkpoint

Arrays = dict[str, Any]


@pytest.mark.parametrize("seed", range(30))
def test_drawn_models_say_what_marian_says(tmp_path: Path, seed: int) -> None:
    case = marian_nmt.write(seed, tmp_path)
    found = load_checkpoint(case.path)
    config = found.config.to_dict()
    assert {key: config[key] for key in case.config} == dict(case.config)
    assert difference(*both(found, case.vocab, seed)) < 1e-4


def test_start_is_a_vector_of_zeros_and_is_never_said(tmp_path: Path) -> None:
    case = marian_nmt.write(2, tmp_path)
    found = load_checkpoint(tmp_path)
    start = found.config.decoder_start_id
    assert start == case.vocab[1]
    model = found.build()
    table = model.get_parameter("target_embedding.tokens.weight")
    assert not table[start].any()
    run = ModuleReference(model, "")
    source, mask = torch.tensor([[3, 4, 0]]), torch.ones(1, 3)
    logits = run.decode(run.encode(source, mask), mask, torch.tensor([[start, 5]]))
    probabilities = logits.softmax(-1)
    assert (probabilities[..., start] == 0).all()
    torch.testing.assert_close(probabilities[..., :start], logits[..., :start].softmax(-1))


@pytest.mark.parametrize("vocab", [(12, 30), (30, 12)])
def test_ids_of_unequal_vocabularies_fit_both(tmp_path: Path, vocab: tuple[int, int]) -> None:
    given = {"tied_embeddings_all": False, "tied_embeddings_src": False, "tied_embeddings": True}
    path = marian_nmt.write(1, tmp_path, **given).path
    arrays = load(path)
    arrays["encoder_Wemb"] = arrays["encoder_Wemb"][: vocab[0]].repeat(2, 0)[: vocab[0]]
    arrays["decoder_Wemb"] = arrays["decoder_Wemb"].repeat(2, 0)[: vocab[1]]
    arrays["decoder_ff_logit_out_b"] = arrays["decoder_ff_logit_out_b"].repeat(2, 1)[:, : vocab[1]]
    np.savez(path, **arrays)
    found = load_checkpoint(path)
    assert found.config.target_vocab_size == vocab[1] + 1
    assert found.config.pad_id == vocab[1]
    assert difference(*both(found, vocab, 0)) < 1e-4


def test_learned_positions_and_no_output_bias(tmp_path: Path) -> None:
    path = marian_nmt.write(3, tmp_path, transformer_train_positions=True).path
    arrays = load(path)
    width = next(array.shape[1] for name, array in arrays.items() if name.endswith("Wemb"))
    arrays["Wpos"] = np.random.default_rng(0).normal(size=(20, width)).astype(np.float32)
    del arrays["decoder_ff_logit_out_b"]
    np.savez(path, **arrays)
    found = load_checkpoint(path)
    assert (found.config.positions, found.config.max_positions) == ("learned", 20)
    assert not found.config.scale_embeddings
    assert difference(*both(found, (20, 20), 0)) < 1e-4


def load(path: Path) -> Arrays:
    with np.load(path) as archive:
        return dict(archive)


REFUSED: dict[str, Any] = {
    "type": "s2s", "transformer-decoder-autoreg": "rnn", "transformer-no-projection": True,
    "transformer-ffn-depth": 3, "transformer-ffn-activation": "tanh", "right-left": True,
    "transformer-postprocess": "dhn", "transformer-postprocess-top": "a", "ulr": True,
    "transformer-tied-layers": [1, 1], "transformer-heads": "x",
}  # fmt: skip


@pytest.mark.parametrize("option", REFUSED)
def test_option_that_is_not_supported_is_named(tmp_path: Path, option: str) -> None:
    path = marian_nmt.write(0, tmp_path, **{option: REFUSED[option]}).path
    with pytest.raises(ConfigError, match=option):
        load_checkpoint(path)


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("decoder_l1_rnn_W", r"recurrent decoder \(SSRU"),
        ("encoder_l1_self_Wq_QuantMultA", "a quantized layer"),
        ("encoder_l1_other_W", "was not read"),
    ],
)
def test_array_that_is_not_supported_is_named(tmp_path: Path, key: str, reason: str) -> None:
    path = marian_nmt.write(0, tmp_path).path
    more: Arrays = {key: np.ones((2, 2), np.float32)}
    np.savez(path, **load(path), **more)
    with pytest.raises(CheckpointError, match=rf"{reason}.*{re.escape(key)}|{key}.*{reason}"):
        load_checkpoint(path)


def test_file_with_something_wrong_says_so_once(tmp_path: Path) -> None:
    path = marian_nmt.write(0, tmp_path).path
    arrays = load(path)
    del arrays["encoder_l1_ffn_W1"]
    np.savez(path, **arrays)
    with pytest.raises(CheckpointError, match="encoder_l0_ffn_W1"):
        load_checkpoint(path)
    np.savez(path, **arrays | {"decoder_l1_self_Wq": np.ones((2, 2), np.int8)})
    with pytest.raises(CheckpointError, match="packed or quantized is not supported"):
        load_checkpoint(path)
    del arrays["special:model.yml"]
    np.savez(path, **arrays)
    with pytest.raises(CheckpointError, match=r"not a Marian-NMT model.*special:model\.yml"):
        load_checkpoint(path)


def test_hostile_archives_are_refused_at_once(tmp_path: Path) -> None:
    path = marian_nmt.write(0, tmp_path).path
    arrays = load(path)
    huge = np.lib.format.header_data_from_array_1_0(np.zeros(1, np.float32)) | {"shape": (2**40,)}
    hostile: list[tuple[str, Any]] = [
        ("objects", np.array([{}], dtype=object)),
        ("options", np.frombuffer(yaml.safe_dump({"a": "b"}).encode() * 20000, np.int8)),
        ("zeros", np.zeros(2**25, np.float32)),
    ]
    for kind, array in hostile:
        name = "special:model.yml" if kind == "options" else "Wemb"
        save = np.savez_compressed if kind == "zeros" else np.savez
        save(path, **arrays | {name: array})
        with at_once(), pytest.raises(CheckpointError):
            load_checkpoint(path)
    with (tmp_path / "Wx.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, huge)
    for record in ((tmp_path / "Wx.npy").read_bytes(), b"", b"\x93NUMPY\x03\x00"):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("Wx.npy", record)
        with at_once(), pytest.raises(CheckpointError, match="not an archive of arrays"):
            load_checkpoint(path)
    path.write_bytes(b"PK\x03\x04 no archive")
    with pytest.raises(CheckpointError, match="not an archive of arrays"):
        load_checkpoint(path)
