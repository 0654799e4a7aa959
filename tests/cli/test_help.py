"""The command as a whole: ``--help`` and the docs of every verb, and the version."""

import re
from importlib.metadata import version
from pathlib import Path

import click
import pytest

from tests.support.command import COMMANDS, invoke
from tests.support.paths import REPOSITORY, VERSION_1
from tfexport import __version__
from tfexport.cli.decoding_options import SECTIONS
from tfexport.cli.main import cli
from tfexport.runtime.model import native_engine
from tfexport.runtime.options import SPECS
from tfexport.runtime.parallel.cpu import instruction_set


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_examples_stand_on_lines_of_their_own(name: str) -> None:
    shown = invoke(*name.split(), "--help").stdout
    assert "\\b" not in shown
    assert "\b" not in shown
    command = COMMANDS[name] if name else cli
    written = (command.help or "").partition("\b\n")[2].split("\n")
    written = [line.strip() for line in written if line.strip()]
    lines = [line.strip() for line in shown.splitlines()]
    for number, line in enumerate(written):
        assert line in lines
        continued = number and written[number - 1].endswith("\\")
        assert continued or line.startswith("tfexport ")
    # However it is written: no line holds the begin of two.
    assert all(line.count(f"tfexport {name} ") <= 1 for line in lines)


@pytest.mark.parametrize(
    "name",
    ["onnx", "torchscript", "verify", "translate", "corpus", "score", "quantize", "bench"],
)
def test_commands_with_many_options_show_an_example(name: str) -> None:
    assert re.search(rf"^ *tfexport {name} ", invoke(name, "--help").stdout, re.MULTILINE)


@pytest.mark.parametrize("name", COMMANDS)
def test_whole_numbers_have_bounds_that_are_shown(name: str) -> None:
    shown = invoke(name, "--help").stdout
    for option in COMMANDS[name].params:
        if isinstance(option.type, click.types.IntParamType):
            assert isinstance(option.type, click.IntRange), option.name
            assert option.type.min is not None, option.name
            assert option.type.max is not None, option.name
            assert f"{option.type.min}<=x<={option.type.max}" in re.sub(r"\s+", "", shown)


def test_command_line_has_every_option_but_these() -> None:
    absent = {name for name, spec in SPECS.items() if spec.help is None}
    assert absent == {"callback", "return_scores"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["translate", "x", "--max-length", "abc"],
         "'--max-length': 'abc' is not an integer from 0 to 2147483647."),
        (["serve", "x", "--port", "a"], "'--port': 'a' is not an integer from 0 to 65535."),
        (["translate", "x", "--length-penalty", "much"],
         "'--length-penalty': 'much' is not a number."),
        (["translate", "x", "--device", "cuda"], "No such option '--device': models are decoded on "
         "the CPU; GPUs are not supported."),
        (["corpus", "x", "y", "z", "--fp16"], "No such option '--fp16': models are decoded on"),
        (["translate", "x", "--bean-size", "2"], "No such option '--bean-size'. (Did you mean"),
    ],
)  # fmt: skip
def test_wrong_values_and_options_are_told_in_plain_words(
    arguments: list[str], message: str
) -> None:
    done = invoke(*arguments)
    assert done.exit_code == 2
    assert message in done.stderr


@pytest.mark.parametrize("option", ["batch-size", "beam-size", "threads", "workers", "seed"])
def test_huge_numbers_are_refused_with_the_bound(option: str) -> None:
    for number in ("1" + "0" * 30, "9" * 5000):
        done = invoke("translate", VERSION_1, f"--{option}", number, stdin="w5\n")
        assert done.exit_code == 2
        assert f"--{option}" in done.stderr


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_every_command_and_option_has_help(name: str) -> None:
    result = invoke(*name.split(), "--help")
    assert result.exit_code == 0
    command = COMMANDS[name] if name else cli
    assert command.help
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help or parameter.show_default, parameter.name


def test_every_command_and_option_stands_in_the_docs() -> None:
    text = (REPOSITORY / "docs" / "commands.md").read_text(encoding="utf-8")
    decoding = (REPOSITORY / "docs" / "decoding.md").read_text(encoding="utf-8")
    for name, command in COMMANDS.items():
        section = text.partition(f"## tfexport {name}\n")[2].partition("\n## ")[0]
        assert section, name
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                long = max(parameter.opts, key=len)
                decodes = name in ("translate", "corpus", "serve") and parameter.name in SPECS
                page = decoding if decodes else section
                assert f"`{long}`" in page, f"{name}: {long}"


def test_version_names_onnxruntimes_and_the_processor() -> None:
    first, second, third = invoke("--version").output.splitlines()
    assert first == f"tfexport, version {__version__}"
    assert second == f"onnxruntime {version('onnxruntime')}, {instruction_set()}"
    assert third == native_engine.describe()


def test_version_names_the_native_engine_or_says_that_there_is_none() -> None:
    line = native_engine.describe()
    if native_engine.why_not_here():
        assert line.startswith("tfexport-native is not installed; ")
    else:
        assert (
            line == f"tfexport-native {native_engine.version()}, {native_engine.instruction_set()}"
        )


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_test_file_that_runs_it(name: str) -> None:
    file = Path(__file__).with_name(f"test_{name}.py")
    assert file.exists()
    assert f'("{name}", ' in file.read_text(encoding="utf-8")


def test_options_of_decoding_stand_in_sections() -> None:
    listed = [name for names in SECTIONS.values() for name in names]
    assert sorted(listed) == sorted({*listed})
    assert {name for name, spec in SPECS.items() if spec.help is not None} <= {*listed}
    for verb in ("translate", "corpus", "score", "bench"):
        shown = invoke(verb, "--help").stdout
        titles = re.findall(r"^(\w+):(?! tf)", shown, re.MULTILINE)
        assert [title for title in ("Usage", "Options", *SECTIONS) if title in titles] == titles
        assert not re.search(r"^ +\[?(BUNDLE|FILE)\b", shown.partition("Options:")[2], re.MULTILINE)
        for option in COMMANDS[verb].params:
            if isinstance(option, click.Option):
                (title,) = (t for t in ("Options", *SECTIONS)
                            if (option.name in SECTIONS.get(t, ())) or
                            (t == "Options" and option.name not in listed))  # fmt: skip
                section = shown.partition(f"\n{title}:\n")[2].partition("\n\n")[0]
                assert option.opts[-1] in section, (verb, option.name)


@pytest.mark.parametrize(
    ("name", "said"),
    [("translat", "Did you mean 'translate'"), ("transcript", "'transcribe'"), ("xyz", "")],
)
def test_a_command_that_is_none_is_named_with_those_like_it(name: str, said: str) -> None:
    done = invoke(name)
    assert done.exit_code == 2
    assert f"No such command '{name}'." in done.stderr
    assert said in done.stderr
    assert ("Did you mean" in done.stderr) is bool(said)


def test_a_name_of_the_hub_is_named_with_its_download(tmp_path: Path) -> None:
    for command in (("onnx", "-o", tmp_path / "x", "--checkpoint"), ("inspect",)):
        done = invoke(*command, "Helsinki-NLP/opus-mt-de-en")
        assert done.exit_code == 1
        assert "'hf download Helsinki-NLP/opus-mt-de-en', and name" in done.stderr
    assert "hf download" not in invoke("inspect", tmp_path / "a" / "b").stderr
