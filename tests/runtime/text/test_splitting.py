"""Text split into words: as torchtext's basic_english does, as spaCy does, and unknown ways.

The pairs in ``fixtures/torchtext/basic_english.json`` were written by torchtext 0.18:
``[[line, get_tokenizer("basic_english")(line)] for line in lines]``.
"""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY
from tests.system.test_imports import run
from tfexport.errors import TokenizerError
from tfexport.runtime.text.tokenizer import load_tokenizer
from tfexport.runtime.text.vocabulary import Vocabulary, find_splitter

pytestmark = pytest.mark.no_model

PAIRS = json.loads((REPOSITORY / "tests/fixtures/torchtext/basic_english.json").read_text())


@pytest.mark.parametrize(("line", "words"), PAIRS)
def test_basic_english_gives_the_words_of_torchtext(line: str, words: list[str]) -> None:
    assert find_splitter("basic_english")(line) == words


def test_white_space_is_all_that_splits_without_a_tokenizer() -> None:
    assert find_splitter("whitespace")(" It's\u2003a\tcat. ") == ["It's", "a", "cat."]


def test_every_character_is_a_word_and_a_space_too() -> None:
    assert find_splitter("characters")("Ja,  é\u0301🙂\n") == [*"Ja,  é\u0301🙂\n"]


def test_javascript_reads_characters_as_python_does(tmp_path: Path) -> None:
    if shutil.which("node") is None:
        pytest.skip("needs node")
    words = ["<unk>", "<pad>", " ", "a", "é", "🙂"]
    Vocabulary(words, "characters").write(tmp_path / "vocab.json")
    ours = load_tokenizer(tmp_path / "vocab.json", "vocabulary", 6, 0, hidden=(1,))
    code = f"""
        import {{ readFileSync }} from "node:fs";
        import {{ loadTokenizers }} from "{REPOSITORY}/native/wasm/texts.mjs";
        const entry = {{ kind: "vocabulary", file: "vocab.json" }};
        const manifest = {{ special_ids: {{ unk: 0, pad: 1 }}, module: null, languages: null,
                           tokenizers: {{ source: entry, target: entry }} }};
        const read = async (name) => readFileSync("{tmp_path}/" + name, "utf8");
        const {{ source }} = await loadTokenizers(manifest, {{ text: read }});
        const {{ ids }} = source.encode("a é  🙂x");
        const text = source.decode([1, ...ids], {{ skip_special_tokens: true }});
        console.log(JSON.stringify([ids, text]));
    """
    run = ["node", "--input-type=module", "-e", code]
    done = subprocess.run(run, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ids = ours.encode("a é  🙂x")
    assert json.loads(done.stdout) == [ids, ours.decode([1, *ids])]


def test_spacy_splits_as_its_own_tokenizer_does() -> None:
    spacy = pytest.importorskip("spacy", reason="needs spaCy: make .venv/spacy")
    lines = ["Zwei Männer (z.B. aus Köln) gehen's an,  oder?", "Am 3. Mai\nkostet's 3,50€!"]
    for language in ("de", "en"):
        own = spacy.blank(language).tokenizer
        split = find_splitter(f"spacy:{language}")
        for line in lines:
            assert split(line) == [token.text for token in own(line)]
    german, english = (find_splitter(f"spacy:{language}") for language in ("de", "en"))
    assert german(lines[0])[3] == "z.B."
    assert german(lines[0]) != english(lines[0]), "the language matters"


def test_language_that_spacy_lacks_is_an_error() -> None:
    pytest.importorskip("spacy", reason="needs spaCy: make .venv/spacy")
    with pytest.raises(TokenizerError, match=r"spacy:qqq: spaCy cannot load .*qqq"):
        find_splitter("spacy:qqq")


def test_spacy_that_is_missing_is_named() -> None:
    code = "from tfexport.runtime.text.vocabulary import find_splitter\nfind_splitter('spacy:de')"
    done: subprocess.CompletedProcess[str] = run(code, blocked=("spacy",))
    assert "MissingDependencyError" in done.stderr
    assert "splitting text as spacy:de needs the spacy library. Install it with" in done.stderr


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "moses",
            "'moses' is not a known rule for splitting text; expected whitespace, basic_english",
        ),
        ("", "expected whitespace, basic_english, characters or spacy:LANGUAGE"),
        ("spacy:de_core_news_sm", "is not a language.*de_core_news_sm uses the tokenizer of de"),
        ("spacy:../model", "is not a language"),
        ("spacy:", "is not a language"),
    ],
)
def test_unknown_way_is_refused(name: str, message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        find_splitter(name)
