"""The command as people run it: in a process, with streams and exit codes."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import pytest
import torch
from click.testing import CliRunner, Result

from tests import tutorial
from tests.conftest import REPOSITORY, SETTINGS
from tfexport import __version__
from tfexport.cli.decoding_options import SCORING
from tfexport.cli.main import cli
from tfexport.cli.tables import parity_table
from tfexport.export import ParityReport, export_graph, export_torchscript
from tfexport.export.parity import Comparison
from tfexport.runtime import Translator
from tfexport.runtime import translator as translator_module

IDS = [f"--set={key}={value}" for key, value in SETTINGS.items()]


def invoke(*args: object, stdin: str | bytes = b"") -> Result:
    data = stdin.encode() if isinstance(stdin, str) else stdin
    return CliRunner().invoke(cli, [str(arg) for arg in args], input=data)


def run(*args: object, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "tfexport", *map(str, args)]
    return subprocess.run(command, input=stdin, capture_output=True)


# --- help -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", *cli.commands])
def test_every_command_and_option_has_help(name: str) -> None:
    result = invoke(*name.split(), "--help")
    assert result.exit_code == 0
    command = cli.commands[name] if name else cli
    assert command.help
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help or parameter.show_default, parameter.name


def test_every_command_and_option_stands_in_the_docs() -> None:
    text = (REPOSITORY / "docs" / "commands.md").read_text(encoding="utf-8")
    for name, command in cli.commands.items():
        section = text.partition(f"## tfexport {name}\n")[2].partition("\n## ")[0]
        assert section, name
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                long = max(parameter.opts, key=len)
                assert f"`{long}`" in section, f"{name}: {long}"


def test_version() -> None:
    assert invoke("--version").output == f"tfexport, version {__version__}\n"


# --- onnx and verify --------------------------------------------------------------------------


def test_onnx_then_verify_then_translate(tmp_path: Path, tiny_checkpoint: Path) -> None:
    bundle = tmp_path / "a.bundle"
    done = invoke(
        "onnx", "--checkpoint", tiny_checkpoint, "-o", bundle, "--set", "num_heads=2", *IDS
    )
    assert done.exit_code == 0, done.output
    assert "equal to torch.nn.Transformer" in done.stdout
    assert "exporting decoder.onnx" in done.stderr
    # What the checkpoint does not say is taken from the bundle.
    report = tmp_path / "report.html"
    checked = invoke(
        "verify", bundle, "--checkpoint", tiny_checkpoint, "--json", "--report", report
    )
    assert checked.exit_code == 0, checked.output
    assert json.loads(checked.stdout)["passed"] is True
    assert "greedy tokens" in report.read_text()
    table = invoke("verify", bundle, "--checkpoint", tiny_checkpoint)
    assert "cached steps" in table.stdout
    translated = invoke("translate", bundle, "--ids", "--max-length", 6, stdin="12 4 4 5 6\n\n5\n")
    expected = Translator(bundle).generate([[12, 4, 4, 5, 6], [], [5]], max_length=6)
    lines = [" ".join(map(str, result.hypotheses[0].tokens)) for result in expected]
    assert translated.stdout.split("\n") == [*lines, ""]


def test_verify_fails_with_status_1_where_the_model_is_another(
    tmp_path: Path, tiny_bundle: Path, tutorial_model: tutorial.TutorialModel
) -> None:
    state = {key: value.clone() for key, value in tutorial_model.state_dict().items()}
    state["transformer.encoder.layers.0.linear1.bias"] += 0.1
    torch.save(state, tmp_path / "other.pt")
    done = invoke("verify", tiny_bundle, "--checkpoint", tmp_path / "other.pt")
    assert done.exit_code == 1
    assert "NOT equal to torch.nn.Transformer: first difference in encoder states" in done.stdout


@pytest.mark.parametrize(
    ("args", "status", "message"),
    [
        (["--checkpoint", "nothing.pt"], 1, "nothing.pt: no such file or folder."),
        (["--checkpoint", "model.pt", "--set", "num_hedas=2"], 2, "did you mean 'num_heads'?"),
        (["--checkpoint", "model.pt", "--set", "num_heads=3"], 2, "3 heads do not divide"),
        (["--checkpoint", "model.pt"], 2, "needed, and not in the file: num_heads, pad_id"),
        (["--checkpoint", "model.pt", "--format", "bert"], 2, "'bert' is not one of"),
        (["--checkpoint", "model.pt", "--opset", "13"], 2, "13 is not in the range 18<=x<=25"),
        (["--checkpoint", "model.pt", "--config", "no.json"], 1, "no.json: not readable"),
        (["--checkpoint", "text.pt"], 1, "truncated, damaged, or not a PyTorch checkpoint"),
        ([], 2, "Missing option '--checkpoint'"),
    ],
)
def test_wrong_use_of_onnx_says_so_and_leaves_nothing(
    tmp_path: Path, tiny_checkpoint: Path, args: list[str], status: int, message: str
) -> None:
    shutil.copy(tiny_checkpoint, tmp_path / "model.pt")
    (tmp_path / "text.pt").write_text("hello, no checkpoint")
    before = sorted(tmp_path.iterdir())
    files = [str(tmp_path / a) if a.endswith((".pt", ".json")) else a for a in args]
    done = invoke("onnx", "-o", tmp_path / "a.bundle", *files)
    assert done.exit_code == status, done.output
    assert message in done.stderr
    assert "Traceback" not in done.output
    assert sorted(tmp_path.iterdir()) == before


def test_existing_output_is_kept_without_force(tmp_path: Path, tiny_bundle: Path) -> None:
    done = invoke("onnx", "--checkpoint", "unread.pt", "-o", tiny_bundle)
    assert done.exit_code == 1
    assert "already exists. Use --force" in done.stderr
    (tmp_path / "file").write_text("mine")
    done = invoke("onnx", "--checkpoint", "unread.pt", "-o", tmp_path / "file", "--force")
    assert done.exit_code == 1
    assert (tmp_path / "file").read_text() == "mine"


# --- translate --------------------------------------------------------------------------------


def test_one_bad_line_does_not_lose_the_others(tiny_bundle: Path) -> None:
    lines = b"\n".join([b"w12 w4", b"w5 \xff", b"", b" ".join([b"w5"] * 99), b"w9 w9"])
    done = invoke("translate", tiny_bundle, "--max-length", 5, stdin=lines)
    good = Translator(tiny_bundle).translate(["w12 w4", "w9 w9"], max_length=5)
    assert done.stdout.split("\n") == [good[0].text, "", "", "", good[1].text, ""]
    assert done.exit_code == 1
    assert "-:2: not UTF-8: invalid start byte at byte 3" in done.stderr
    assert "-:4: 100 tokens are more than the 64" in done.stderr
    assert "2 lines could not be decoded" in done.stderr


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("5 99", "id 99 is not in the vocabulary (0 to 16)"),
        ("-5", "id -5 is not in the vocabulary"),
        ("5 six", "'six' is not a whole number"),
        ("1_0", "'1_0' is not a whole number"),
        ("٣", "'٣' is not a whole number"),
        ("9" * 5000, "is not a whole number"),
        ("5.0", "'5.0' is not a whole number"),
    ],
)
def test_bad_ids_are_reported_with_their_line(tiny_bundle: Path, line: str, message: str) -> None:
    done = invoke("translate", tiny_bundle, "--ids", "--max-length", 2, stdin=f"12 4\n{line}\n5\n")
    assert done.exit_code == 1
    assert re.search(f"^-:2: .*{re.escape(message)}", done.stderr, re.MULTILINE)
    assert len(done.stdout.split("\n")) == 4
    assert done.stdout.split("\n")[1] == ""


def test_file_goes_to_file_and_is_not_overwritten(tmp_path: Path, tiny_bundle: Path) -> None:
    (tmp_path / "in.txt").write_bytes(b"\xef\xbb\xbfw12 w4\r\nw5\r\n")  # as Windows writes it
    args = ("translate", tiny_bundle, tmp_path / "in.txt", "-o", tmp_path / "out.txt")
    assert invoke(*args, "--max-length", 4).exit_code == 0
    expected = Translator(tiny_bundle).translate(["w12 w4", "w5"], max_length=4)
    assert (tmp_path / "out.txt").read_bytes() == "".join(f"{r.text}\n" for r in expected).encode()
    again = invoke(*args)
    assert again.exit_code == 1
    assert "already exists" in again.stderr
    assert invoke(*args, "--force", "--truncate").exit_code == 0


def test_what_fails_at_the_start_leaves_an_old_output_as_it_was(
    tmp_path: Path, tiny_bundle: Path
) -> None:
    output = tmp_path / "out.txt"
    output.write_text("old\n")
    for bundle, file in ((tmp_path / "none", "-"), (tiny_bundle, tmp_path / "none.txt")):
        assert invoke("translate", bundle, file, "-o", output, "--force").exit_code == 1
        assert output.read_text() == "old\n"
    assert invoke("translate", tmp_path / "none", "-o", tmp_path / "new.txt").exit_code == 1
    assert not (tmp_path / "new.txt").exists()


def test_input_is_never_its_own_output(tmp_path: Path, tiny_bundle: Path) -> None:
    (tmp_path / "in.txt").write_text("w12 w4\n")
    (tmp_path / "link.txt").symlink_to(tmp_path / "in.txt")
    for output in ("in.txt", "link.txt"):
        done = invoke(
            "translate", tiny_bundle, tmp_path / "in.txt", "-o", tmp_path / output, "--force"
        )
        assert done.exit_code == 1
        assert "is also the input" in done.stderr
        assert (tmp_path / "in.txt").read_text() == "w12 w4\n"


def test_jsonl_holds_text_tokens_and_score(tiny_bundle: Path) -> None:
    done = invoke("translate", tiny_bundle, "--jsonl", "--max-length", 4, stdin="w12 w4\nw5 \n\n")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == 3
    expected = Translator(tiny_bundle).translate(["w12 w4"], max_length=4)[0]
    assert rows[0]["text"] == expected.text
    assert rows[0]["tokens"] == expected.hypotheses[0].tokens
    assert rows[0]["score"] == pytest.approx(expected.hypotheses[0].score, abs=1e-6)


def test_missing_input_and_damaged_bundle_fail_in_one_line(
    tmp_path: Path, tiny_bundle: Path
) -> None:
    done = invoke("translate", tiny_bundle, tmp_path / "no.txt")
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert "no.txt: No such file or directory" in done.stderr
    shutil.copytree(tiny_bundle, tmp_path / "b.bundle")
    with (tmp_path / "b.bundle" / "weights.bin").open("r+b") as file:
        file.write(b"X")
    done = invoke("translate", tmp_path / "b.bundle", stdin="w5\n")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "weights.bin was changed" in done.stderr
    assert invoke("translate", tmp_path / "none", stdin="w5\n").exit_code == 1


def test_utf8_whatever_the_locale(tiny_bundle: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tfexport", "translate", str(tiny_bundle), "--ids"],
        input="größe\n".encode(),
        capture_output=True,
        env={**os.environ, "LC_ALL": "C", "PYTHONIOENCODING": "ascii"},
    )
    assert "-:1: 'größe' is not a whole number" in done.stderr.decode("utf-8")


def test_interrupt_leaves_whole_lines_and_says_130(tmp_path: Path, tiny_bundle: Path) -> None:
    source, target = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("w12 w4 w4 w5 w6\n" * 100_000)
    command = [sys.executable, "-m", "tfexport", "translate", str(tiny_bundle), str(source)]
    with subprocess.Popen([*command, "-o", str(target)], stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + 60
        while not (target.exists() and target.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        errors = process.stderr.read().decode()
    assert process.returncode == 130
    assert "Traceback" not in errors
    lines = target.read_text().split("\n")
    assert lines[-1] == "", "the last line is whole"
    assert len(lines) > 1
    assert set(lines[:-1]) == {lines[0]}


def test_closed_pipe_is_no_error_message(tiny_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("w12 w4\n" * 20_000)
    command = f"{sys.executable} -m tfexport translate {tiny_bundle} {tmp_path}/in.txt | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stdout.count("\n") == 1
    assert "Traceback" not in done.stderr


# --- inspect and demo -------------------------------------------------------------------------


def test_inspect_of_a_checkpoint_shows_what_was_read_and_assumed(tiny_checkpoint: Path) -> None:
    facts = json.loads(invoke("inspect", tiny_checkpoint, "--json").stdout)
    assert facts["layout"] == "nn-transformer"
    assert facts["config"]["d_model"] == {"value": 8, "origin": "weights"}
    assert facts["config"]["activation"] == {"value": "relu", "origin": "assumed"}
    assert facts["config"]["num_heads"] == {"value": None, "origin": "missing"}
    assert facts["keys"]["generator.bias"] == ["output_proj.bias"]
    trained = sum(
        value.numel()
        for key, value in torch.load(tiny_checkpoint).items()
        if key != "positional_encoding.pos_embedding"
    )
    assert facts["parameters"] == trained
    text = invoke("inspect", tiny_checkpoint, "--set", "num_heads=2").stdout
    assert re.search(r"num_heads\W+2\W+--set", text)


def test_inspect_of_a_broken_checkpoint_names_its_problems(
    tmp_path: Path, tutorial_model: tutorial.TutorialModel
) -> None:
    state = dict(tutorial_model.state_dict())
    del state["generator.weight"]
    torch.save({**state, "other": torch.ones(1)}, tmp_path / "a.pt")
    done = invoke("inspect", tmp_path / "a.pt")
    assert done.exit_code == 1
    assert "problem: generator.weight [19, 8] is missing" in done.stdout
    assert "problem: other was not read" in done.stdout


@pytest.mark.parametrize("kind", ["generate", "torchscript"])
def test_inspect_of_a_single_file(
    tmp_path: Path, tutorial_model: tutorial.TutorialModel, kind: str
) -> None:
    path = tmp_path / ("g.onnx" if kind == "generate" else "m.ts")
    if kind == "generate":
        export_graph(tutorial_model, path, "generate", config=SETTINGS, verify=False)
    else:
        export_torchscript(tutorial_model, path, config=SETTINGS, verify=False)
    shown = invoke("inspect", str(path))
    assert shown.exit_code == 0, shown.output
    assert f"{kind}, of tfexport" in shown.output
    assert "not compared with eager PyTorch" in shown.output
    assert "eos_id" in shown.output
    if kind == "generate":
        assert "needs:        onnxruntime 1.21" in shown.output
        assert "input:        input_ids (batch, source_length)" in shown.output
    facts = json.loads(invoke("inspect", str(path), "--json").stdout)
    assert facts["kind"] == kind
    assert facts["config"]["eos_id"] == 2


def test_inspect_of_a_bundle(tiny_bundle: Path) -> None:
    text = invoke("inspect", tiny_bundle).stdout
    assert "checksums good" in text
    assert "equal to torch.nn.Transformer" in text
    assert json.loads(invoke("inspect", tiny_bundle, "--json").stdout)["format_version"] == 1
    assert invoke("inspect", tiny_bundle.parent / "none").exit_code == 1


def test_demo_runs_on_a_model_of_the_right_form(
    tmp_path: Path, tiny_checkpoint: Path, words: list[str]
) -> None:
    shutil.copy(tiny_checkpoint, tmp_path / "model.pt")
    (tmp_path / "config.json").write_text(json.dumps({"num_heads": 2, **SETTINGS}))
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    (tmp_path / "test.tsv").write_text("w12 w4\tw6 w7\nw4 w5\tw16\n")
    done = run("demo", "--model", tmp_path, "-o", tmp_path / "d.bundle")
    assert done.returncode == 0, done.stderr
    text = done.stdout.decode()
    assert "torch blocked" in text
    assert "BLEU" in text
    assert "process start to first translation" in text


def test_demo_outside_a_clone_says_where_its_model_is(tmp_path: Path) -> None:
    done = invoke("demo", "--model", tmp_path)
    assert done.exit_code == 2
    assert "ships with the repository" in done.stderr


def test_table_keeps_its_columns_where_a_stage_lacks_a_shape_or_has_it_twice() -> None:
    comparisons = [
        Comparison("generate", 8, 7, 0.0, 20),
        Comparison("scores", 8, 7, 1e-6, 8),
        Comparison("text", 8, 40, 0.0, 30),
        Comparison("text", 8, 40, 1.0, 12, near_ties=2),
    ]
    table = parity_table(ParityReport("eager", comparisons), "g.onnx")
    cells = [list(column.cells) for column in table.columns]
    assert cells[2:] == [
        ["20 equal", ""],
        ["1.0e-06", ""],
        ["", "[bold red]✗ 1 rows differ, 2 near ties[/]"],
    ]


def test_scoring_options_are_those_of_the_runtime() -> None:
    # Listed twice, since the command line may not load the runtime to show its help.
    names = {name.replace("-", "_") for name in SCORING}
    assert names == translator_module._SCORE_OPTIONS


# --- decoding options ---------------------------------------------------------------------------


def test_contradictions_stand_in_one_message_as_they_are_written(tiny_bundle: Path) -> None:
    result = invoke(
        "translate", tiny_bundle, "--top-p", 0.5, "--num-hypotheses", 5, "--beam-size", 4,
        "--suppress-tokens", "nope", "--target-prefix", "w5 w6", "--max-length", 1, "--resume",
        "--return-attention",
    )  # fmt: skip
    assert result.exit_code == 2
    for part in (
        "6 problems",
        "--top-p needs --sampling",
        "--num-hypotheses 5 exceeds --beam-size 4",
        "--suppress-tokens: 'nope' is no token of the vocabulary",
        "--target-prefix of row 0: 2 tokens are more than --max-length 1",
        "--resume needs FILE and --output",
        "--return-attention needs --jsonl",
    ):
        assert part in result.stderr
    assert not result.stdout


def test_every_decoding_option_reaches_the_decoder(tiny_bundle: Path) -> None:
    """Each option, given, is what the same keyword gives in Python."""
    translator = Translator(tiny_bundle)
    text = "w5 w6 w7"
    ways: list[tuple[list[Any], dict[str, Any]]] = [
        (["--beam-size", 4, "--length-penalty", 0.2, "--no-early-stopping"],
         {"beam_size": 4, "length_penalty": 0.2, "early_stopping": False}),
        (["--beam-size", 4, "--patience", 2, "--coverage-penalty", 0.5],
         {"beam_size": 4, "patience": 2.0, "coverage_penalty": 0.5}),
        (["--beam-size", 4, "--beam-groups", 2, "--diversity-penalty", 2],
         {"beam_size": 4, "beam_groups": 2, "diversity_penalty": 2.0}),
        (["--sampling", "--temperature", 2, "--top-k", 9, "--top-p", 0.9, "--seed", 3],
         {"sampling": True, "temperature": 2.0, "top_k": 9, "top_p": 0.9, "seed": 3}),
        (["--min-length", 9, "--no-repeat-ngram-size", 2, "--repetition-penalty", 1.5],
         {"min_length": 9, "no_repeat_ngram_size": 2, "repetition_penalty": 1.5}),
        (["--suppress-tokens", "w9 w16", "--suppress-sequences", "w4 w4", "--disable-unk"],
         {"suppress_tokens": ["w9", "w16"], "suppress_sequences": ["w4 w4"], "disable_unk": True}),
        (["--end-tokens", "w16 w9", "--return-end-token"],
         {"end_tokens": ["w16", "w9"], "return_end_token": True}),
        (["--batch-size", 7, "--batch-type", "tokens", "--max-input-length", 3, "--truncate"],
         {"max_input_length": 3, "truncate": True}),
        (["--replace-unknowns", "--attention-layer", 0, "--attention-head", 1],
         {"replace_unknowns": True, "attention_layer": 0, "attention_head": 1}),
    ]  # fmt: skip
    for flags, keywords in ways:
        options: dict[str, Any] = {"max_length": 12, **keywords}
        result = invoke("translate", tiny_bundle, "--max-length", 12, *flags, stdin=text + "\n")
        assert result.exit_code == 0, result.stderr
        assert result.stdout == f"{translator.translate([text], **options)[0].text}\n"


def test_n_best_lines_alignments_and_prefixes(tmp_path: Path, tiny_bundle: Path) -> None:
    translator = Translator(tiny_bundle)
    lines = "w5 w6\n\nw7 w8 w9\n"
    args = ("translate", tiny_bundle, "--max-length", 5)
    many = invoke(*args, "--beam-size", 3, "--num-hypotheses", 3, "--alignment", stdin=lines)
    found = translator.translate(lines.split("\n")[:3], max_length=5, beam_size=3,
                                 num_hypotheses=3, return_attention=True)  # fmt: skip
    expected = []
    for result in found:
        written = [
            f"{text} ||| " + " ".join(f"{s}-{t}" for s, t in result.alignment(place))
            for place, text in enumerate(result.texts)
        ]
        expected += written + [""] * (3 - len(written))
    assert many.stdout.split("\n")[:-1] == expected

    (tmp_path / "prefix.txt").write_text("w9\n\nw10 w4\n", encoding="utf-8")
    prefixed = invoke(*args, "--target-prefix-file", tmp_path / "prefix.txt", stdin=lines)
    assert [line[:6] for line in prefixed.stdout.splitlines()] == ["w9 w" + prefixed.stdout[4:6],
                                                                    "", "w10 w4"]  # fmt: skip
    short = invoke(*args, "--target-prefix-file", tmp_path / "prefix.txt", stdin=lines + "w5\n")
    assert short.exit_code == 1
    assert "-:4: there is no line with a target prefix for it" in short.stderr
    ids = invoke(*args, "--ids", "--target-prefix", "9 10", stdin="5 6 2\n")
    assert ids.stdout.startswith("9 10 ")
    assert invoke(*args, "--ids", "--target-prefix", "w9", stdin="5\n").exit_code == 2


def test_attention_is_drawn(tmp_path: Path, tiny_bundle: Path) -> None:
    pytest.importorskip("matplotlib")
    args = ("translate", tiny_bundle, "--max-length", 4, "--attention-plot")
    done = invoke(*args, tmp_path / "a.png", stdin="w5 w6\n\nw7\n")
    assert done.exit_code == 0, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a-3.png", "a.png"]
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    wrong = invoke(*args, tmp_path / "a.gif", stdin="w5\n")
    assert wrong.exit_code == 2
    assert ".png, .svg, .pdf" in wrong.stderr


def test_score_is_the_score_of_decoding(tmp_path: Path, tiny_bundle: Path) -> None:
    translator = Translator(tiny_bundle)
    sources = ["w5 w6", "w7", "", "w8 w9"]
    found = translator.translate(sources, max_length=30, beam_size=2)
    (tmp_path / "a.txt").write_text("".join(f"{s}\n" for s in sources) + "w4\n", encoding="utf-8")
    (tmp_path / "b.txt").write_text("".join(f"{r.text}\n" for r in found), encoding="utf-8")
    done = invoke("score", tiny_bundle, tmp_path / "a.txt", tmp_path / "b.txt")
    assert done.exit_code == 1
    assert "a.txt:5: " in done.stderr
    assert "has no such line" in done.stderr
    *scores, last = done.stdout.split("\n")[:-1]
    assert last == ""
    for line, result in zip(scores, found, strict=True):
        if result.hypotheses[0].finished:
            assert float(line) == pytest.approx(result.hypotheses[0].score, abs=2e-6)
    # As Windows writes files: a byte-order mark is no part of the first word.
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + (tmp_path / name).read_bytes())
    marked = invoke("score", tiny_bundle, tmp_path / "a.txt", tmp_path / "b.txt")
    assert marked.stdout == done.stdout
    wrong = invoke("score", tiny_bundle, tmp_path / "a.txt", tmp_path / "b.txt", "--beam-size", 2)
    assert wrong.exit_code == 2
    jsonl = invoke("score", tiny_bundle, tmp_path / "a.txt", tmp_path / "b.txt", "--jsonl",
                   "--return-token-scores", "-o", tmp_path / "c.jsonl")  # fmt: skip
    assert jsonl.exit_code == 1
    values = [json.loads(line) for line in (tmp_path / "c.jsonl").read_text().splitlines()]
    assert values[4]["score"] is None
    assert sum(values[0]["token_scores"]) / len(values[0]["token_scores"]) == pytest.approx(
        values[0]["score"]
    )
