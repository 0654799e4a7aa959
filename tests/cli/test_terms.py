"""``tfexport translate --terms``: glossaries, and what is said of terms that are not met."""

import json
from pathlib import Path

import pytest

from tests.support.command import invoke
from tests.support.documents import read_blocks, words
from tests.support.paths import REPOSITORY

TBX = (
    "<tbx><text><body><conceptEntry><langSec xml:lang='de'><termSec><term>w4</term></termSec>"
    "</langSec><langSec xml:lang='en'><termSec><term>w9 w10</term></termSec></langSec>"
    "</conceptEntry></body></text></tbx>"
)


def test_the_glossary_of_the_documentation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    glossary, command, printed = read_blocks(REPOSITORY / "docs" / "terms.md")[:3]
    (tmp_path / "terms.tsv").write_text(glossary.text, encoding="utf-8")
    lines = "Ich mag diesen Film.\nGuten Morgen!\n"
    (tmp_path / "german.txt").write_text(lines, encoding="utf-8")
    (tmp_path / "examples").symlink_to(REPOSITORY / "examples")
    monkeypatch.chdir(tmp_path)
    done = invoke(*words(command.text)[1:])
    assert (done.stdout, done.stderr) == (printed.text, "")


@pytest.mark.parametrize(
    ("name", "content", "options"),
    [
        ("x.tsv", "w5\tw12\nw4\tw9 w10\n", ()),
        ("x.csv", "w4,w9 w10,de,en\n", ()),
        ("x.tbx", TBX, ("--languages", "de-en")),
    ],
)
def test_terms_of_every_kind_of_file_are_met(
    tmp_path: Path, tiny_bundle: Path, name: str, content: str, options: tuple[str, ...]
) -> None:
    path = tmp_path / name
    path.write_text(content)
    done = invoke("translate", tiny_bundle, "--terms", path, *options, stdin="w6\nw7 w4\n")
    plain, met = done.stdout.splitlines()
    assert "w9 w10" in met
    assert done.exit_code == 0
    assert "not met" not in done.stderr
    assert plain == invoke("translate", tiny_bundle, stdin="w6\n").stdout.strip()


def test_what_is_not_met_is_reported_by_line(tmp_path: Path, tiny_bundle: Path) -> None:
    path = tmp_path / "x.tsv"
    path.write_text("w4\tw9 w10 w11\tw9 w9 w9 w9\n")
    call = ("translate", tiny_bundle, "--terms", path, "--max-length", 2)
    done = invoke(*call, stdin="w6\nw4\n")
    assert done.exit_code == 0
    assert "-:2: not met: 'w4' as 'w9 w10 w11' or 'w9 w9 w9 w9'\n" in done.stderr
    assert "1 term was not met, in 1 line\n" in done.stderr
    lines = [
        json.loads(line) for line in invoke(*call, "--jsonl", stdin="w6\nw4\n").stdout.splitlines()
    ]
    assert "unmet_terms" not in lines[0]
    assert lines[1]["unmet_terms"] == [{"source": "w4", "targets": ["w9 w10 w11", "w9 w9 w9 w9"]}]
    page = "<p>w6</p><p>w4</p>"
    done = invoke(*call, "--format", "html", stdin=page)
    assert "stdin: 'w4': not met: 'w4' as" in done.stderr
    assert "1 term was not met, in 1 sentence\n" in done.stderr


def test_a_term_goes_across_tags(tmp_path: Path, tiny_bundle: Path) -> None:
    path = tmp_path / "x.tsv"
    path.write_text("w4 w5\tw9 w10\n")
    call = ("translate", tiny_bundle, "--terms", path, "--format", "html")
    done = invoke(*call, stdin="<p>w4 w5 w6</p><p>w4 <b>w5</b></p>")
    assert done.exit_code == 0, done.stderr
    assert done.stdout.count("w9") >= 2
    assert done.stdout.count("<b>") == 1
    assert "not met" not in done.stderr


def test_another_run_goes_on_with_the_same_terms_only(tmp_path: Path, tiny_bundle: Path) -> None:
    source, output = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("w4\nw5\n")
    for name, target in (("a", "w9"), ("b", "w10")):
        (tmp_path / f"{name}.tsv").write_text(f"w5\t{target}\n")
    call = ("translate", tiny_bundle, source, "-o", output, "--resume", "--terms")
    assert invoke(*call, tmp_path / "a.tsv").exit_code == 0
    assert invoke(*call, tmp_path / "a.tsv").exit_code == 0
    done = invoke(*call, tmp_path / "b.tsv")
    assert done.exit_code == 1
    assert "line 2 is not what this input, bundle and options give" in done.stderr


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (("--languages", "de-en"), 2, "--languages needs --terms"),
        (("--terms", "x.tsv", "--ids"), 2, "--terms applies to text, not to --ids"),
        (("--terms", "x.tsv", "--inputs", "x.npz"), 2, "not to --inputs"),
        (("--terms", "x.tbx", "--languages", "de"), 2, "--languages: 'de' is not a pair"),
        (("--terms", "x.tbx"), 1, "name them with --languages de-en"),
        (("--terms", "x.csv", "--languages", "de-fr"), 1, "target language is en, not fr"),
        (("--terms", "no.tsv"), 1, "no.tsv: No such file"),
        (("--terms", "x.tsv"), 1, "line 2: 'w5' has no tab"),
        (("--terms", "y.tsv"), 1, "terms: "),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(
    tmp_path: Path, tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...], code: int, said: str,
) -> None:  # fmt: skip
    (tmp_path / "x.tsv").write_text("w4\tw9\nw5\n")
    (tmp_path / "y.tsv").write_text("w4 w5\tw9\nw4  w5\tw8\n")
    (tmp_path / "x.tbx").write_text(TBX)
    (tmp_path / "x.csv").write_text("w4,w9,de,en\n")
    monkeypatch.chdir(tmp_path)
    done = invoke("translate", tiny_bundle, *options, stdin="w4\n")
    assert done.exit_code == code
    assert said in done.stderr


def test_other_commands_say_where_terms_belong() -> None:
    for command in ("corpus", "score", "bench"):
        done = invoke(command, "x", "--terms", "x.tsv")
        assert done.exit_code == 2
        assert "--terms" in done.stderr
        assert "tfexport translate" in done.stderr
