"""``tfexport translate`` as people run it: streams, files, options, exit codes."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.command import invoke
from tfexport.cli import translate_command
from tfexport.runtime import Translator


def test_one_bad_line_does_not_lose_the_others(tiny_bundle: Path) -> None:
    lines = b"\n".join([b"w12 w4", b"w5 \xff", b"", b" ".join([b"w5"] * 99), b"w9 w9"])
    done = invoke("translate", tiny_bundle, "--max-length", 5, stdin=lines)
    good = Translator(tiny_bundle).translate(["w12 w4", "w9 w9"], max_length=5)
    assert done.stdout.split("\n") == [good[0].text, "", "", "", good[1].text, ""]
    assert done.exit_code == 1
    assert "-:2: not UTF-8: invalid start byte at byte 3" in done.stderr
    assert "-:4: 100 tokens exceed the model's limit of 64" in done.stderr
    assert "or truncate it with --truncate\n" in done.stderr
    assert "2 lines could not be decoded" in done.stderr


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("5 99", "id 99 is not in the vocabulary (0 to 16)"),
        ("-5", "id -5 is not in the vocabulary"),
        ("5 six", "'six' is not an integer"),
        ("1_0", "'1_0' is not an integer"),
        ("٣", "'٣' is not an integer"),
        ("9" * 5000, "is not an integer"),
        ("5.0", "'5.0' is not an integer"),
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


def test_a_failure_at_the_start_leaves_an_old_output_as_it_was(
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
    assert "-:1: 'größe' is not an integer" in done.stderr.decode("utf-8")


def test_interrupt_leaves_whole_lines_and_says_130(tmp_path: Path, tiny_bundle: Path) -> None:
    source, target = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("w12 w4 w4 w5 w6\n" * 100_000)
    command = [sys.executable, "-m", "tfexport", "translate", str(tiny_bundle), str(source)]
    with subprocess.Popen(
        [*command, "-o", str(target)],
        stderr=subprocess.PIPE,
        # A shell lets what it starts in the background ignore the signal, and all below that too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
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
        "--suppress-tokens: 'nope' is not a token of the vocabulary",
        "--target-prefix of row 0: 2 tokens exceed --max-length 1",
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
        arguments = ("translate", tiny_bundle, "--jsonl", "--max-length", 12, *flags)
        result = invoke(*arguments, stdin=text + "\n")
        assert result.exit_code == 0, result.stderr
        made, expected = json.loads(result.stdout), translator.translate([text], **options)[0]
        assert (made["text"], made["tokens"]) == (expected.text, expected.hypotheses[0].tokens)


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


def test_lines_that_were_cut_are_counted(tmp_path: Path, tiny_bundle: Path) -> None:
    arguments = ("translate", tiny_bundle, "--max-length", 1)
    for options in ((), ("-o", tmp_path / "out.txt"), ("--beam-size", 2, "--num-hypotheses", 2)):
        done = invoke(*arguments, *options, stdin="w12 w4\n\nw5\n")
        assert done.exit_code == 0
        assert (
            "2 lines were cut at 1 tokens, before the translation's end; see --max" in done.stderr
        )
    done = invoke(*arguments, "--jsonl", stdin="w12 w4\n\n")
    assert "1 line was cut at 1 tokens" in done.stderr
    values = [json.loads(line) for line in done.stdout.splitlines()]
    assert [value["finished"] for value in values] == [False, True]


@pytest.mark.skipif(os.name == "nt", reason="needs signals")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "in.txt: {} lines were translated."),
        (["-o", "out.txt"], "out.txt: {} lines were translated by this run. To continue, run the "
         "same command with --resume."),
        (["-o", "out.txt", "--force"], "with --resume in place of --force."),
    ],
)  # fmt: skip
def test_an_interrupted_run_says_how_far_it_came(
    tmp_path: Path, tiny_bundle: Path, options: list[str], said: str
) -> None:
    (tmp_path / "in.txt").write_text("w12 w4 w5\n" * 20_000)
    command = [sys.executable, "-m", "tfexport", "translate", str(tiny_bundle), "in.txt", *options]
    output = tmp_path / "stdout"
    with output.open("wb") as stdout, subprocess.Popen(
        command, cwd=tmp_path, stdout=stdout, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:  # fmt: skip
        written = tmp_path / "out.txt" if options else output
        while not (written.exists() and written.stat().st_size):
            assert process.poll() is None
            time.sleep(0.01)
        if options == ["-o", "out.txt"]:
            again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
            assert "out.txt: is being written by process" in again.stderr
            assert "--resume" not in again.stderr
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    count = written.read_bytes().count(b"\n")
    assert 0 < count < 20_000
    # A line that was written just before the interrupt may not be counted yet, but none is
    # counted that was not written.
    assert any(said.format(f"{lines:,}") in told for lines in (count, count - 1))
    assert told.endswith("Interrupted.\n")
    assert "Traceback" not in told


@pytest.mark.skipif(os.name == "nt", reason="needs pipes of names")
def test_an_interrupted_pipe_is_begun_anew(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for file in ("-", str(tmp_path / "pipe")):
        call: Any = SimpleNamespace(file=file, output="out.txt", force=False, resume=False)
        assert translate_command._how_far(call, 1234) == (
            "out.txt: 1,234 lines were translated by this run. "
            f"{file} can be read only once: start again with --force."
        )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--force"], "--force needs --output"),
        (["--return-end-token"], "--return-end-token needs --jsonl or --ids"),
        (["--return-token-scores", "--return-attention"], "--return-attention needs --jsonl"),
        (["--force", "--return-token-scores"], "--return-token-scores needs --jsonl"),
    ],
)
def test_options_without_effect_are_refused(
    tiny_bundle: Path, options: list[str], said: str
) -> None:
    done = invoke("translate", tiny_bundle, *options, stdin="w5\n")
    assert done.exit_code == 2
    assert said in done.stderr
    assert all(option in done.stderr for option in options)
    arguments = ("translate", tiny_bundle, "--inputs", "rows.npz", "--replace-unknowns")
    done = invoke(*arguments, *options)
    assert done.exit_code == 2
    assert "--replace-unknowns applies to text, not to arrays" in done.stderr
    assert said in done.stderr or "end-token" in said


def test_tokens_that_the_model_does_not_know_are_counted(tiny_bundle: Path) -> None:
    done = invoke("translate", tiny_bundle, "--max-length", 9, stdin="w5 w6\n<b>w5</b> Ω\nЖ w7\n")
    assert done.exit_code == 0
    assert re.search(r"\d tokens of the source, in 2 lines, unknown to the model", done.stderr)
    assert "unknown" not in invoke("translate", tiny_bundle, stdin="w5 w6\n").stderr
