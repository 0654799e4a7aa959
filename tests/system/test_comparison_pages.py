"""docs/coming-from.md and docs/not-supported.md: what they name is there, or is not."""

import inspect
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.documents import run_in_shell
from tests.support.paths import REPOSITORY
from tfexport.model_src.checkpoint.unsupported import BY_FORWARD, MODULE, UNSUPPORTED
from tfexport.runtime import Translator
from tfexport.runtime.options import SPECS

COMING = (REPOSITORY / "docs" / "coming-from.md").read_text(encoding="utf-8")
NOT_SUPPORTED = (REPOSITORY / "docs" / "not-supported.md").read_text(encoding="utf-8")
OPTIMUM = REPOSITORY / ".venv-optimum" / "bin"
# Of transformers' generate, but no settings: arguments and objects.
ARGUMENTS = {"decoder_input_ids", "stopping_criteria", "truncation"}


def rows(heading: str) -> list[list[str]]:
    """Cells of a table's rows, without its head."""
    section = COMING.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def names(cell: str) -> list[str]:
    return re.findall(r"`([\w-]+)`", cell)


def test_options_of_this_project_exist() -> None:
    named = [name for row in rows("Options") for name in names(row[2])]
    assert len(named) > 30
    assert set(named) - {"target_prefix"} <= set(SPECS)
    # Every option is in the table, but for those that nobody else has.
    own = {"return_token_scores", "attention_layer", "attention_head", "search_rules"}
    assert set(SPECS) - set(named) == own


@pytest.mark.peers
def test_options_of_ctranslate2_exist() -> None:
    ctranslate2 = pytest.importorskip("ctranslate2")
    known = set(re.findall(r"(\w+):", ctranslate2.Translator.translate_batch.__doc__))
    named = {name for row in rows("Options") for name in names(row[0])}
    assert named <= known
    # All of them are in the table, but for what has no counterpart and no name.
    rest = known - named - {"source", "self", "Arguments", "Returns", "Note", "asynchronous"}
    signature = ctranslate2.Translator.translate_batch.__doc__.partition(") ->")[0]
    assert {n for n in rest if re.search(rf"\b{n}: .* = ", signature)} <= {"return_logits_vocab"}
    opening = ctranslate2.Translator.__init__.__doc__
    for row in rows("Loading"):
        for name in names(row[1]):
            assert name in opening or hasattr(ctranslate2.Translator, name) or name in known, name


@pytest.mark.peers
def test_options_of_transformers_exist() -> None:
    transformers = pytest.importorskip("transformers")
    known = set(vars(transformers.GenerationConfig())) | ARGUMENTS
    named = {name for row in rows("Options") for name in names(row[1])}
    assert len(named) > 25
    assert named <= known
    assert f"transformers {transformers.__version__}" in COMING


@pytest.mark.peers
def test_defaults_differ_as_the_page_says() -> None:
    ctranslate2 = pytest.importorskip("ctranslate2")
    assert f"CTranslate2 {ctranslate2.__version__}" in COMING
    signature = ctranslate2.Translator.translate_batch.__doc__
    for name, theirs, ours in (
        ("beam_size", "2", "beam_size"),
        ("min_decoding_length", "1", "min_length"),
        ("length_penalty", "1", "length_penalty"),
        ("sampling_topk", "1", None),
    ):
        assert re.search(rf"{name}: \w+ = {theirs}\b", signature)
        if ours == "beam_size":
            assert SPECS[ours].default == 1
        elif ours == "min_length":
            assert SPECS[ours].default == 0


def test_calls_of_this_project_exist() -> None:
    parameters: set[str] = set()
    for function in (Translator.__init__, Translator.translate):
        parameters |= set(inspect.signature(function).parameters)
    for row in rows("Loading"):
        for name in names(row[3]):
            assert name in parameters or hasattr(Translator, name), name


@pytest.mark.peers
@pytest.mark.parametrize("column", [1, 2])
def test_converters_exist(column: int) -> None:
    pytest.importorskip("ctranslate2")
    commands = {
        command.split()[0]
        for row in rows("Converting")
        for command in re.findall(r"`((?:ct2|optimum)-[\w-]+[^`]*)`", row[column])
    }
    assert commands
    for command in commands:
        if command.startswith("optimum"):
            if not OPTIMUM.exists():
                pytest.skip("needs make .venv-optimum/ready")
            assert (OPTIMUM / command).exists()
        else:
            assert Path(sys.executable).with_name(command).exists()
    if column == 1:  # all of them have the arguments of one class
        assert "--output_dir" in run_in_shell("ct2-opennmt-py-converter --help", Path.cwd())


@pytest.mark.peers
@pytest.mark.skipif(not OPTIMUM.exists(), reason="needs make .venv-optimum/ready")
def test_optimum_has_the_commands_and_classes_of_the_page() -> None:
    code = "from optimum.onnxruntime import ORTModelForSeq2SeqLM as M; import inspect; "
    code += "print(*inspect.signature(M.from_pretrained).parameters, hasattr(M, 'generate'))"
    printed = run_in_shell(f'{OPTIMUM}/python -W ignore -c "{code}"', Path.cwd())
    assert "True" in printed.split()
    assert "export" in run_in_shell(f"{OPTIMUM}/optimum-cli export onnx --help", Path.cwd())


def test_every_model_that_is_refused_by_name_is_on_the_page() -> None:
    table = NOT_SUPPORTED.partition("## Models\n")[2].partition("\n## ")[0]
    for kind, refused in UNSUPPORTED.items():
        if BY_FORWARD in refused.ways:
            continue
        title = re.sub(r"^an? | \(.*", "", refused.title)
        if "decoder-only" in title or "encoder-only" in title:
            title = title.partition(" ")[0]
        if kind == "encoder-decoder":
            title = "an encoder-decoder of two BERTs"
        words = title.replace("'s decoder", "").replace(" 2", "").replace(" v2", "")
        assert words.lower() in table.lower(), kind
        row = next(line for line in table.splitlines() if words.lower() in line.lower())
        for way in refused.ways:
            where = "own code" if MODULE in way else way.split()[0]
            assert where in row, f"{kind}: {where}"


def test_folders_that_are_exported_by_their_own_forward_are_listed() -> None:
    page = (REPOSITORY / "docs" / "guides" / "hugging-face.md").read_text(encoding="utf-8")
    kinds = {kind for kind, refused in UNSUPPORTED.items() if BY_FORWARD in refused.ways}
    section = page.partition("## A folder that no layout reads\n")[2]
    listed = {name for line in section.splitlines() for name in names(line) if line[:1] == "|"}
    assert {kind.replace("-", "_") for kind in kinds} <= {name.replace("-", "_") for name in listed}


def test_questions_and_pages_name_no_option_that_is_not_there() -> None:
    from tests.support.command import COMMANDS

    known = {name for verb in COMMANDS.values() for p in verb.params for name in p.opts}
    others = {
        "--build",
        "--quantization",
        "--output_dir",
        "--model",
        "--help",
        "--version",
        "--from",
    }
    for page in ("questions", "not-supported", "coming-from"):
        text = (REPOSITORY / "docs" / f"{page}.md").read_text(encoding="utf-8")
        used: set[Any] = set(re.findall(r"(?<![\w-])--[a-z][\w-]+", text))
        assert used - others <= known, page
