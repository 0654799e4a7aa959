"""State dict to bundle to tokens, against torch.nn.Transformer and the tutorial's loop."""

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch
from hypothesis import given, settings
from tokenizers import Tokenizer, models, pre_tokenizers

from tests import tutorial
from tests.conftest import SETTINGS
from tests.model_src.test_transformer import stock_models, to_settings
from tfexport.bundle import open_bundle
from tfexport.errors import (
    BundleError,
    CheckpointError,
    ConfigError,
    OutputExistsError,
    TokenizerError,
)
from tfexport.export import export_bundle
from tfexport.model_src import TransformerConfig, build_transformer, save_checkpoint
from tfexport.runtime import Translator

IDS = [f"{key}={value}" for key, value in SETTINGS.items()]


def check_tokens(bundle: Path, model: tutorial.TutorialModel, options: dict[str, Any]) -> None:
    generator = random.Random(0)
    rows = [
        [generator.randrange(options["source_size"]) for _ in range(generator.randint(1, 9))]
        for _ in range(6)
    ]
    limit = min(12, options["length"])
    found = Translator(bundle, threads=1).generate(rows, max_length=limit)
    expected = [tutorial.greedy(model, row, limit, bos=1, eos=2) for row in rows]
    assert [result.hypotheses[0].tokens for result in found] == expected


@given(options=stock_models)
@settings(max_examples=3)
def test_stock_model_of_any_shape_exports_with_one_call(
    tmp_path_factory: pytest.TempPathFactory, options: dict[str, Any]
) -> None:
    folder = tmp_path_factory.mktemp("stock")
    model = tutorial.make(**{**options, "scale": 1.0})
    torch.save(model.state_dict(), folder / "model.pt")
    result = export_bundle(
        folder / "model.pt", folder / "a.bundle", settings=[*to_settings(options), *IDS]
    )
    assert result.report is not None
    assert result.report.reference == "torch.nn.Transformer"
    check_tokens(folder / "a.bundle", model, options)


@pytest.mark.parametrize(
    "options",
    [
        {"norm": "annotated", "norm_placement": "pre", "mask_fill": -1e9, "positions": "learned"},
        {"norm": "rms", "activation": "silu", "head_dim": 5, "attention_bias": False},
        {"norm_placement": "res_post", "share_decoder_layers": True, "positions": "none"},
        {"positions_every_layer": True, "share_encoder_layers": True, "feed_forward_bias": False},
    ],
    ids=["annotated", "rms", "res-post", "shared"],
)
def test_variants_of_the_native_format_export_and_are_equal(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    config = TransformerConfig(
        d_model=8, num_heads=2, num_encoder_layers=2, num_decoder_layers=2, d_ff=12,
        source_vocab_size=11, target_vocab_size=11, **SETTINGS, **options,
    )  # fmt: skip
    torch.manual_seed(0)
    save_checkpoint(build_transformer(config), tmp_path / "model.safetensors")
    result = export_bundle(tmp_path, tmp_path / "a.bundle")
    assert result.report is not None
    assert result.report.passed
    assert result.manifest.config == config.to_dict()


def test_training_script_ends_with_a_bundle(tmp_path: Path) -> None:
    model = tutorial.make(norm_first=True, activation="gelu").train()
    result = export_bundle(model, tmp_path / "a.bundle", config=SETTINGS)
    assert model.training, "the caller's module is left as it was"
    assert result.manifest.parity is not None
    assert result.manifest.parity["passed"]
    check_tokens(tmp_path / "a.bundle", model.eval(), {"source_size": 17, "length": 64})


@pytest.mark.usefixtures("graphs_once")
def test_config_of_a_live_module_may_be_a_file(tmp_path: Path) -> None:
    (tmp_path / "ids.json").write_text(json.dumps(SETTINGS))
    result = export_bundle(
        tutorial.make(), tmp_path / "a.bundle", config=tmp_path / "ids.json", verify=False
    )
    assert result.manifest.special_ids.eos == 2


def test_bundle_needs_its_special_ids(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pad_id, bos_id, eos_id"):
        export_bundle(tutorial.make(), tmp_path / "a.bundle")


def make_tokenizers(folder: Path, size: int) -> dict[str, Path]:
    """One small tokenizer of every kind."""
    (folder / "words.txt").write_text("\n".join(f"w{i}" for i in range(size)) + "\n")
    vocabulary = {f"w{i}": i for i in range(size)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="w3"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.enable_truncation(1)
    tokenizer.save(str(folder / "t.json"))
    (folder / "corpus").write_text("\n".join(f"ab{i} cd{i}" for i in range(200)))
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "corpus"),
        model_prefix=str(folder / "sp"),
        vocab_size=size,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return {
        "words": folder / "words.txt",
        "tokenizers": folder / "t.json",
        "sentencepiece": folder / "sp.model",
    }


@pytest.mark.usefixtures("graphs_once")
@pytest.mark.parametrize("kind", ["words", "tokenizers", "sentencepiece"])
def test_tokenizer_of_every_kind_travels_in_the_bundle(tmp_path: Path, kind: str) -> None:
    files = make_tokenizers(tmp_path, 24)
    model = tutorial.make(source_size=24, target_size=24)
    export_bundle(
        model,
        tmp_path / "a.bundle",
        config={**SETTINGS, "unk_id": 3, "add_source_bos": True, "add_source_eos": True},
        tokenizer=files[kind],
        verify=False,
    )
    translator = Translator(tmp_path / "a.bundle")
    text = "ab1 cd2" if kind == "sentencepiece" else "w5 w6 w7"
    ids = translator.encode(text)
    assert (ids[0], ids[-1]) == (1, 2)
    assert len(ids) >= 4, "a cut-off set in the file must not shorten inputs"
    if kind != "sentencepiece":
        assert ids == [1, 5, 6, 7, 2]
    assert isinstance(translator.translate([text], max_length=5)[0].text, str)


@pytest.mark.usefixtures("graphs_once")
def test_each_side_may_have_its_own_tokenizer(tmp_path: Path) -> None:
    files = make_tokenizers(tmp_path, 24)
    result = export_bundle(
        tutorial.make(source_size=24, target_size=24),
        tmp_path / "a.bundle",
        config=SETTINGS,
        source_tokenizer=files["words"],
        target_tokenizer=files["tokenizers"],
        verify=False,
    )
    kinds = {side: entry.kind for side, entry in result.manifest.tokenizers.items()}
    assert kinds == {"source": "words", "target": "tokenizers"}
    assert {"source-vocab.txt", "target-tokenizer.json"} <= set(result.manifest.files)


@pytest.mark.usefixtures("graphs_once")
def test_tokenizer_beside_the_checkpoint_is_taken(tmp_path: Path) -> None:
    make_tokenizers(tmp_path, 24)["tokenizers"].rename(tmp_path / "tokenizer.json")
    state = tutorial.make(source_size=24, target_size=24).state_dict()
    torch.save(state, tmp_path / "model.pt")
    result = export_bundle(
        tmp_path, tmp_path / "a.bundle", settings=["num_heads=4", *IDS], verify=False
    )
    assert result.tokenizers == (tmp_path / "tokenizer.json",)


@pytest.mark.parametrize(
    ("choice", "error", "message"),
    [
        (
            {"tokenizer": "big"},
            TokenizerError,
            "ids go up to 19, the model's vocabulary ends at 16",
        ),
        ({"tokenizer": "missing"}, TokenizerError, "no such file"),
        ({"tokenizer": "broken.json"}, TokenizerError, "not a tokenizer.json"),
        ({"tokenizer": "broken.model"}, TokenizerError, "not a SentencePiece model"),
        ({"tokenizer": "twice"}, TokenizerError, "'a' stands on line 1 and on line 3"),
        (
            {"source_tokenizer": "big"},
            ConfigError,
            "source_tokenizer and target_tokenizer together",
        ),
        ({"tokenizer": "big", "target_tokenizer": "big"}, ConfigError, "not both"),
    ],
)
def test_tokenizer_that_does_not_fit_is_refused_before_the_export(
    tmp_path: Path, choice: dict[str, str], error: type[Exception], message: str
) -> None:
    (tmp_path / "big").write_text("\n".join(f"w{i}" for i in range(20)))
    (tmp_path / "broken.json").write_text("{}")
    (tmp_path / "broken.model").write_text("no model")
    (tmp_path / "twice").write_text("a\nb\na\n")
    files: dict[str, Any] = {key: tmp_path / name for key, name in choice.items()}
    with pytest.raises(error, match=message):
        export_bundle(tutorial.make(), tmp_path / "a.bundle", config=SETTINGS, **files)
    assert not (tmp_path / "a.bundle").exists()


@pytest.mark.usefixtures("graphs_once")
def test_force_replaces_and_its_absence_refuses(tmp_path: Path, tiny_checkpoint: Path) -> None:
    model = tutorial.make()
    export_bundle(model, tmp_path / "a.bundle", config=SETTINGS, verify=False)
    with pytest.raises(OutputExistsError, match="Use --force"):
        export_bundle(model, tmp_path / "a.bundle", config=SETTINGS)
    result = export_bundle(
        model, tmp_path / "a.bundle", config={**SETTINGS, "unk_id": 5}, verify=False, force=True
    )
    assert open_bundle(tmp_path / "a.bundle") == result.manifest


def test_failing_import_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(b"no checkpoint")
    with pytest.raises(CheckpointError):
        export_bundle(tmp_path / "model.pt", tmp_path / "a.bundle")
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]


# The command with its graphs at hand, so that it spends its time on what it does with them.
WITH_GRAPHS = """
import sys
from pathlib import Path
import onnx_ir as ir
from tfexport.cli.main import main
from tfexport.export import pipeline
folder = Path(sys.argv.pop(1))
pipeline._export_graphs = lambda *_: {path.name: ir.load(path) for path in folder.glob("*.onnx")}
main()
"""


def export_command(graphs: Path, checkpoint: Path, output: Path, *words: str) -> list[str]:
    settings = [f"--set={word}" for word in ("num_heads=2", *IDS, *words)]
    command = [sys.executable, "-c", WITH_GRAPHS, str(graphs), "onnx", "--force", "--checkpoint"]
    return [*command, str(checkpoint), "-o", str(output), *settings]


def allow_only_small_files() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))


def test_full_disk_leaves_no_bundle(
    tmp_path: Path, tiny_bundle: Path, tiny_checkpoint: Path
) -> None:
    done = subprocess.run(
        export_command(tiny_bundle, tiny_checkpoint, tmp_path / "a.bundle"),
        capture_output=True,
        text=True,
        preexec_fn=allow_only_small_files,
    )
    assert done.returncode == 1, done.stderr
    assert "Error" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_killed_export_leaves_the_old_bundle_or_a_new_one(
    tmp_path: Path, tiny_bundle: Path, tiny_checkpoint: Path, how: signal.Signals
) -> None:
    """Kill at random moments; what stands there decodes as before or as after, never otherwise."""
    output = tmp_path / "a.bundle"
    subprocess.run(
        export_command(tiny_bundle, tiny_checkpoint, output, "unk_id=3"),
        check=True,
        capture_output=True,
    )
    expected = Translator(output).generate([[12, 4, 4, 5, 6]], max_length=9)
    generator = random.Random(int(how))
    for _ in range(4):
        command = export_command(tiny_bundle, tiny_checkpoint, output, "unk_id=4")
        with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
            assert process.stderr is not None
            process.stderr.readline()  # it has begun
            time.sleep(generator.uniform(0, 3))
            process.send_signal(how)
            process.stderr.read()
        try:
            translator = Translator(output)
        except BundleError:
            with pytest.raises(BundleError, match="the previous bundle is whole at"):
                open_bundle(output)
            (aside,) = tmp_path.glob(".a.bundle.aside-*")
            aside.rename(output)
            translator = Translator(output)
        assert translator.manifest.special_ids.unk in (3, 4)
        assert translator.generate([[12, 4, 4, 5, 6]], max_length=9) == expected
    for left in tmp_path.glob(".a.bundle.partial-*"):
        # A kill that no handler sees leaves its folder; nothing reads it as a bundle before its
        # last file, the manifest, is written.
        assert how == signal.SIGKILL
        if (left / "manifest.json").exists():
            try:
                found = Translator(left).generate([[12, 4, 4, 5, 6]], max_length=9)
            except BundleError:
                continue
            assert found == expected
        else:
            with pytest.raises(BundleError):
                Translator(left)


def test_manifest_records_the_proof_and_no_machine(tiny_bundle: Path) -> None:
    text = (tiny_bundle / "manifest.json").read_text()
    parity = json.loads(text)["parity"]
    assert parity["passed"]
    assert parity["reference"] == "torch.nn.Transformer"
    assert os.sep + "tmp" not in text
    assert str(Path.home()) not in text
