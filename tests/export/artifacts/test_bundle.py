"""State dict to bundle to tokens, against torch.nn.Transformer and the tutorial's loop."""

import contextlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch
from hypothesis import HealthCheck, given, settings
from tokenizers import Tokenizer, models, pre_tokenizers

from tests.conftest import CONFIG, SETTINGS
from tests.export.conftest import pre_norm
from tests.model_src.test_transformer import stock_models, to_settings
from tests.support import tutorial
from tfexport.bundle import open_bundle
from tfexport.errors import (
    BundleError,
    CheckpointError,
    ConfigError,
    OutputExistsError,
    TokenizerError,
)
from tfexport.export import export_bundle
from tfexport.runtime import TranslationResult, Translator

IDS = [f"{key}={json.dumps(value)}" for key, value in CONFIG.items()]


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


def at_most_two_layers(options: dict[str, Any]) -> dict[str, Any]:
    layers = ("encoder_layers", "decoder_layers")
    return {**options, **{name: min(options[name], 2) for name in layers}}


# One function-scoped fixture for all examples does no harm: it changes no files.
@pytest.mark.slow
@pytest.mark.usefixtures("few_shapes")
@given(options=stock_models.map(at_most_two_layers))
@settings(max_examples=2, suppress_health_check=list(HealthCheck))
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


@pytest.mark.usefixtures("few_shapes")
def test_training_script_ends_with_a_bundle(tmp_path: Path) -> None:
    model = pre_norm().train()
    result = export_bundle(model, tmp_path / "a.bundle", config=CONFIG)
    assert model.training, "the caller's module is left as it was"
    assert result.manifest.parity is not None
    assert result.manifest.parity["passed"]
    check_tokens(tmp_path / "a.bundle", model.eval(), {"source_size": 17, "length": 64})


def test_config_of_a_live_module_may_be_a_file(
    tmp_path: Path, tutorial_model: tutorial.TutorialModel
) -> None:
    (tmp_path / "ids.json").write_text(json.dumps(CONFIG))
    result = export_bundle(
        tutorial_model, tmp_path / "a.bundle", config=tmp_path / "ids.json", verify=False
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
    (folder / "corpus").write_text("\n".join(f"ab{i % 3} cd{i % 3}" for i in range(200)))
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


@pytest.mark.parametrize("kind", ["words", "tokenizers", "sentencepiece"])
def test_tokenizer_of_every_kind_travels_in_the_bundle(
    tmp_path: Path, tutorial_model: tutorial.TutorialModel, kind: str
) -> None:
    sides = {}
    for side, size in (("source", 17), ("target", 19)):
        (tmp_path / side).mkdir()
        sides[side] = make_tokenizers(tmp_path / side, size)[kind]
    export_bundle(
        tutorial_model,
        tmp_path / "a.bundle",
        config=CONFIG,
        source_tokenizer=sides["source"],
        target_tokenizer=sides["target"],
        verify=False,
    )
    translator = Translator(tmp_path / "a.bundle")
    text = "ab1 cd2" if kind == "sentencepiece" else "w5 w6 w7"
    ids = translator.encode(text)
    assert ids[-1] == 2
    assert len(ids) >= 3, "a cut-off set in the file must not shorten inputs"
    if kind != "sentencepiece":
        assert ids == [5, 6, 7, 2]
    assert isinstance(translator.translate([text], max_length=5)[0].text, str)


def test_each_side_may_have_its_own_tokenizer(
    tmp_path: Path, tutorial_model: tutorial.TutorialModel
) -> None:
    files = make_tokenizers(tmp_path, 17)
    result = export_bundle(
        tutorial_model,
        tmp_path / "a.bundle",
        config=CONFIG,
        source_tokenizer=files["words"],
        target_tokenizer=files["tokenizers"],
        verify=False,
    )
    kinds = {side: entry.kind for side, entry in result.manifest.tokenizers.items()}
    assert kinds == {"source": "words", "target": "tokenizers"}
    assert {"source-vocab.txt", "target-tokenizer.json"} <= set(result.manifest.files)


def test_tokenizer_beside_the_checkpoint_is_taken(tmp_path: Path, tiny_checkpoint: Path) -> None:
    make_tokenizers(tmp_path, 17)["tokenizers"].rename(tmp_path / "tokenizer.json")
    shutil.copy(tiny_checkpoint, tmp_path / "model.pt")
    result = export_bundle(
        tmp_path, tmp_path / "a.bundle", settings=["num_heads=2", *IDS], verify=False
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


def test_force_replaces_and_its_absence_refuses(
    tmp_path: Path, tiny_bundle: Path, tutorial_model: tutorial.TutorialModel
) -> None:
    output = tmp_path / "a.bundle"
    shutil.copytree(tiny_bundle, output)
    with pytest.raises(OutputExistsError, match="Use force=True"):
        export_bundle(tutorial_model, output, config=CONFIG)
    result = export_bundle(tutorial_model, output, config=CONFIG, verify=False, force=True)
    assert result.manifest.tokenizers == {}
    assert open_bundle(tmp_path / "a.bundle") == result.manifest


def test_failing_import_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(b"no checkpoint")
    with pytest.raises(CheckpointError):
        export_bundle(tmp_path / "model.pt", tmp_path / "a.bundle")
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]


# The command with its graphs at hand and little to compare, so that it spends its time on what it
# does with them. It runs once for each line of stdin, in a process of its own that does not have
# to import torch first, and waits for another line before it says that this one has ended.
COMMANDS = """
import dataclasses, json, os, sys, traceback
from pathlib import Path
import onnx_ir as ir
import pytest
import torch
import torch._dynamo
import tfexport.cli.tables
from tests.conftest import compare_few_shapes
from tfexport.cli.main import main
from tfexport.export import graph_forms
folder = Path(sys.argv[1])
graph_forms.BUNDLE_FORMS = tuple(
    dataclasses.replace(form, export=lambda *_, name=form.filename: ir.load(folder / name))
    for form in graph_forms.BUNDLE_FORMS
)
compare_few_shapes(pytest.MonkeyPatch())
torch.set_num_threads(1)
while line := sys.stdin.readline():
    child = os.fork()
    if child == 0:
        os.dup2(2, 1)
        sys.argv = ["tfexport", *json.loads(line)]
        status = 1
        try:
            main()
        except SystemExit as end:
            status = end.code or 0
        except BaseException:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(status)  # onnxruntime cannot be taken down in a fork
    print(child, flush=True)
    sys.stdin.readline()
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
"""


class Commands:
    """Exports of the tiny model to one place, each in a process that can be killed."""

    def __init__(
        self,
        graphs: Path,
        checkpoint: Path,
        output: Path,
        prepare: Callable[[], None] | None = None,
    ) -> None:
        settings = [f"--set={word}" for word in ("num_heads=2", *IDS, "unk_id=4")]
        self.line = json.dumps(
            ["onnx", "--force", "--checkpoint", str(checkpoint), "-o", str(output), *settings]
        )
        self.log = output.with_name("log")
        with self.log.open("wb") as log:
            self.server = subprocess.Popen(
                [sys.executable, "-c", COMMANDS, str(graphs)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                preexec_fn=prepare,
            )  # fmt: skip

    def _ask(self, line: str) -> int:
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        self.server.stdin.write(f"{line}\n")
        self.server.stdin.flush()
        return int(self.server.stdout.readline() or pytest.fail(self.log.read_text()))

    def begin(self) -> int:
        """The process, by its number."""
        return self._ask(self.line)

    def end(self) -> int:
        """Its exit status, or the negative number of the signal that ended it."""
        return self._ask("")


def allow_only_small_files() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))


def test_full_disk_leaves_no_bundle(
    tmp_path: Path, tiny_bundle: Path, tiny_checkpoint: Path
) -> None:
    commands = Commands(
        tiny_bundle, tiny_checkpoint, tmp_path / "a.bundle", prepare=allow_only_small_files
    )
    with commands.server:
        commands.begin()
        assert commands.end() == 1, commands.log.read_text()
    said = commands.log.read_text()
    assert "Error" in said
    assert "Traceback" not in said
    assert list(tmp_path.iterdir()) == [commands.log]


ROW = [[12, 4, 4, 5, 6]]


def check_what_is_left(
    output: Path, expected: list[TranslationResult], how: signal.Signals
) -> None:
    """The old bundle or the new one, whole."""
    try:
        translator = Translator(output)
    except BundleError:
        with pytest.raises(BundleError, match="the previous bundle is whole at"):
            open_bundle(output)
        (aside,) = output.parent.glob(".a.bundle.aside-*")
        aside.rename(output)
        translator = Translator(output)
    assert translator.manifest.special_ids.unk in (3, 4)
    assert translator.generate(ROW, max_length=9) == expected
    for left in output.parent.glob(".a.bundle.partial-*"):
        # A kill that no handler sees leaves its folder; nothing reads it as a bundle before its
        # last file, the manifest, is written.
        assert how == signal.SIGKILL
        if (left / "manifest.json").exists():
            with contextlib.suppress(BundleError):
                assert Translator(left).generate(ROW, max_length=9) == expected
        else:
            with pytest.raises(BundleError):
                Translator(left)
        shutil.rmtree(left)


@pytest.mark.slow
def test_killed_export_leaves_the_old_bundle_or_a_new_one(
    tmp_path: Path, tiny_bundle: Path, tiny_checkpoint: Path
) -> None:
    """Kill at random moments; what stands there decodes as before or as after, never otherwise."""
    output = tmp_path / "a.bundle"
    expected = Translator(tiny_bundle).generate(ROW, max_length=9)
    commands = Commands(tiny_bundle, tiny_checkpoint, output)
    with commands.server:
        start = time.perf_counter()
        commands.begin()
        assert commands.end() == 0, commands.log.read_text()
        duration = time.perf_counter() - start
        generator = random.Random(0)
        for how in [signal.SIGKILL, signal.SIGTERM, signal.SIGINT] * 4:
            shutil.rmtree(output)
            shutil.copytree(tiny_bundle, output)
            process = commands.begin()
            time.sleep(generator.uniform(0, 1.1 * duration))
            os.kill(process, how)
            commands.end()
            check_what_is_left(output, expected, how)


def test_manifest_records_the_proof_and_no_machine(tiny_bundle: Path) -> None:
    text = (tiny_bundle / "manifest.json").read_text()
    parity = json.loads(text)["parity"]
    assert parity["passed"]
    assert parity["reference"] == "torch.nn.Transformer"
    assert os.sep + "tmp" not in text
    assert str(Path.home()) not in text
