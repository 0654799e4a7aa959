"""docs/tutorial.md: the tutorial's model, vocabulary and tokeniser, from torch.save to text.

What comes out is compared with the tutorial's own greedy loop on the same sentences.
"""

import collections
import importlib.util
import json
import pickle
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import tutorial, tutorial_text
from tests.support.browser import TRANSLATE, open_example, wait_for_status
from tests.support.combinations import few_of
from tests.support.command import invoke
from tests.support.documents import read_blocks, run_in_shell
from tests.support.paths import REPOSITORY
from tests.support.tutorial_text import SPECIALS, longest
from tests.system.test_imports import run
from tfexport.export import export
from tfexport.runtime import Translator

pytestmark = pytest.mark.slow

PAGE = REPOSITORY / "docs" / "tutorial.md"
PAIR = REPOSITORY / "tests" / "fixtures" / "torchtext" / "pair-0.18.pt"
GERMAN = [*SPECIALS, *sorted(f"de{i}" for i in range(13))]
ENGLISH = [*SPECIALS, *sorted(f"en{i}" for i in range(15))]
SETTINGS = ["num_heads=2", "framing=tutorial"]
HAS_SPACY = importlib.util.find_spec("spacy") is not None
DECODE = (
    "import json\nfrom tfexport.runtime import Translator\n"
    "translator = Translator(sys.argv[1])\n"
    "for text, length in json.loads(sys.argv[2]):\n"
    "    print(translator.translate([text], max_length=length)[0].text)\n"
    "assert not {'torch', 'torchtext', 'onnx'} & set(sys.modules)"
)


@pytest.fixture(scope="module")
def model() -> tutorial.TutorialModel:
    return tutorial_text.make_model(len(GERMAN), len(ENGLISH))


def sentences(count: int = 30) -> list[str]:
    """Drawn sentences: words of the vocabulary, and some that are not in it."""
    draw = random.Random(7)
    words = [*GERMAN[4:], "Iglu", "(de4)", "de5,", "DE6!"]
    return [" ".join(draw.choices(words, k=draw.randint(1, 9))) for _ in range(count)]


def check(model: tutorial.TutorialModel, bundle: Path, split: Callable[[str], list[str]]) -> None:
    """Hold the bundle, in a process that cannot import torch, against the tutorial's loop."""
    texts = sentences()
    expected = [tutorial_text.translate(model, text, split, GERMAN, ENGLISH) for text in texts]
    assert len(set(expected)) > 10, "outputs have to differ for the comparison to say something"
    rows = json.dumps([(text, longest(split(text))) for text in texts])
    done = run(DECODE, str(bundle), rows, blocked=("torch", "torchtext", "onnx", "onnx_ir"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == expected


def basic_english(text: str) -> list[str]:
    """As torchtext does, for the characters that ``sentences`` has."""
    text = text.lower()
    for mark in "(),!":
        text = text.replace(mark, f" {mark} ")
    return text.split()


def ids(words: list[str]) -> dict[str, int]:
    return {word: i for i, word in enumerate(words)}


def write(path: Path, content: str | bytes) -> None:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


FORMS: dict[str, Callable[[Path, list[str]], Any]] = {
    "list.txt": lambda path, words: write(path, "\n".join(words) + "\n"),
    "dict.json": lambda path, words: write(path, json.dumps(ids(words))),
    "list.json": lambda path, words: write(path, json.dumps(words)),
    "dict.pkl": lambda path, words: write(path, pickle.dumps(ids(words))),
    "list.pkl": lambda path, words: write(path, pickle.dumps(words)),
    "ordered.pt": lambda path, words: torch.save(collections.OrderedDict(ids(words)), path),
    "counter.pt": lambda path, words: torch.save(collections.Counter(ids(words)), path),
}


@pytest.mark.parametrize(
    "form",
    few_of([*FORMS, "torchtext.pt", "torchtext.pkl"], "ordered.pt"),
)
def test_vocabulary_in_every_form_gives_the_tutorials_translations(
    tmp_path: Path, model: tutorial.TutorialModel, form: str
) -> None:
    torch.save(model.state_dict(), tmp_path / "model.pt")
    files: dict[str, Any] = {}
    for side, words in (("source", GERMAN), ("target", ENGLISH)):
        if form in FORMS:
            files[f"{side}_tokenizer"] = tmp_path / f"{side}-{form}"
            FORMS[form](tmp_path / f"{side}-{form}", words)
        else:
            both = PAIR.with_suffix(Path(form).suffix)
            files[f"{side}_tokenizer"] = f"{both}:{'de' if side == 'source' else 'en'}"
    export(
        tmp_path / "model.pt",
        tmp_path / "a.bundle",
        settings=SETTINGS,
        split="basic_english",
        verify=False,
        **files,
    )
    check(model, tmp_path / "a.bundle", basic_english)


@pytest.mark.usefixtures("few_shapes")
def test_text_that_is_split_before_goes_through_the_command_line(
    tmp_path: Path, model: tutorial.TutorialModel
) -> None:
    torch.save(model.state_dict(), tmp_path / "model.pt")
    done = invoke(
        "onnx", "--checkpoint", tmp_path / "model.pt", "-o", tmp_path / "a.bundle",
        *(f"--set={setting}" for setting in SETTINGS), "--source-tokenizer", f"{PAIR}:de",
        "--target-tokenizer", f"{PAIR}:en", "--split", "whitespace",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert f"tokenizer: {PAIR}:de" in done.stderr
    assert "warning" not in done.stderr
    check(model, tmp_path / "a.bundle", str.split)


@pytest.mark.exhaustive
@pytest.mark.skipif(not HAS_SPACY, reason="needs spaCy: make .venv/spacy")
def test_text_is_split_by_spacy(tmp_path: Path, model: tutorial.TutorialModel) -> None:
    spacy = importlib.import_module("spacy")
    files: dict[str, Any] = {"source_tokenizer": f"{PAIR}:de", "target_tokenizer": f"{PAIR}:en"}
    files |= {"source_split": "spacy:de", "target_split": "spacy:en"}
    export(model, tmp_path / "a.bundle", settings=SETTINGS, verify=False, **files)
    own = spacy.blank("de").tokenizer
    check(model, tmp_path / "a.bundle", lambda text: [token.text for token in own(text)])


def test_contradiction_is_a_line_of_the_command_that_says_what_to_set(
    tmp_path: Path, model: tutorial.TutorialModel
) -> None:
    torch.save(model.state_dict(), tmp_path / "model.pt")
    words = ["<unk>", "<pad>", "der", "<eos>", "die", "<bos>", *GERMAN[6:]]
    write(tmp_path / "source.json", json.dumps(words))
    write(tmp_path / "target.json", json.dumps(ENGLISH))
    done = invoke(
        "onnx", "--checkpoint", tmp_path / "model.pt", "-o", tmp_path / "a.bundle", "--no-verify",
        *(f"--set={setting}" for setting in SETTINGS), "--split", "whitespace",
        "--source-tokenizer", tmp_path / "source.json",
        "--target-tokenizer", tmp_path / "target.json",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("warning: ")]
    assert line.endswith(
        "bos_id is 2, which is 'der' in the source vocabulary, but '<bos>' has the id 5; if that "
        "is correct, set it with --set bos_id=5"
    )


@pytest.fixture
def folder(tmp_path: Path, model: tutorial.TutorialModel, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the page's reader is, who has trained the tutorial's model."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


BLOCKS = read_blocks(PAGE)
SENTENCE = "Eine Gruppe von Menschen steht vor einem Iglu ."


@pytest.mark.usefixtures("few_shapes")
def test_page_goes_from_torch_save_to_text(
    folder: Path, model: tutorial.TutorialModel, capsys: pytest.CaptureFixture[str]
) -> None:
    save, export = (block for block in BLOCKS if block.language == "python")
    vocabularies = {"de": ids(GERMAN), "en": ids(ENGLISH)}
    names = {"torch": torch, "transformer": model, "vocab_transform": vocabularies}
    exec(compile(save.text, str(save), "exec"), names)
    assert torch.load(folder / "vocab.pt") == vocabularies
    shutil.copy(PAIR, folder / "vocab.pt")  # as it is where torchtext is installed
    exec(compile(export.text, str(export), "exec"), names)
    printed = capsys.readouterr().out.splitlines()[-1]
    assert printed == _expected(model, folder, basic_english(SENTENCE))


@pytest.mark.exhaustive
@pytest.mark.skipif(not HAS_SPACY, reason="needs spaCy: make .venv/spacy")
def test_commands_of_the_page_run(folder: Path, model: tutorial.TutorialModel) -> None:
    (block,) = (block for block in BLOCKS if not block.language)
    torch.save(model.state_dict(), folder / "model.pt")
    shutil.copy(PAIR, folder / "vocab.pt")
    # The page's model has 8 heads, and comparing takes long; test_page_goes_… compares.
    assert "num_heads=8" in block.text
    script = block.text.replace("num_heads=8", "num_heads=2 --no-verify")
    assert run_in_shell(script, folder).splitlines()[-1] == _expected(
        model, folder, SENTENCE.split()
    )


def _expected(model: tutorial.TutorialModel, folder: Path, words: list[str]) -> str:
    """The tutorial's translation, of as many tokens as there may be, and not five more than words.

    A bundle has ended where the tutorial's loop ends, or runs to the end of the position table.
    """
    positions = model.positional_encoding.pos_embedding.shape[0]
    found = Translator(folder / "de-en.bundle").translate([SENTENCE])[0].hypotheses[0]
    row = [2, *(ids(GERMAN).get(word, 0) for word in words), 3]
    limit = min(len(found.tokens) + 1, positions)
    tokens = tutorial.greedy(model, row, limit, 2, 3)
    return " ".join(ENGLISH[token] for token in tokens)


# The examples of JavaScript

EXAMPLES = REPOSITORY / "examples"
# Capitals, punctuation, an apostrophe, and white space that JavaScript takes for another.
AWKWARD = ["de1 De2,(DE3)!", "it's de4; de5", "de6\x85de7\x1cde8", "\ufeffde9 de10", "de1\u3000de2"]


@pytest.fixture(scope="module")
def word_bundle(model: tutorial.TutorialModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("words") / "words.bundle"
    export(
        model, path, settings=SETTINGS, split="basic_english", output_attentions=True,
        source_tokenizer=f"{PAIR}:de", target_tokenizer=f"{PAIR}:en", verify=False,
    )  # fmt: skip
    return path


@pytest.fixture(scope="module")
def in_python(word_bundle: Path, model: tutorial.TutorialModel) -> list[str]:
    """The texts' translations; those of the tutorial, where it splits the text as a bundle does."""
    texts = [*sentences(), *AWKWARD]
    with Translator(word_bundle, threads=1) as translator:
        found = [str(result.text) for result in translator.translate(texts, beam_size=1)]
    longest = model.positional_encoding.pos_embedding.shape[0]
    for text, translation in zip(sentences(), found, strict=False):
        row = [2, *(ids(GERMAN).get(word, 0) for word in basic_english(text)), 3]
        tokens = tutorial.greedy(model, row, longest, 2, 3)
        assert translation == " ".join(ENGLISH[token] for token in tokens)
    assert len(set(found)) > 10, "outputs have to differ for the comparison to say something"
    return found


def in_node(bundle: Path, texts: list[str]) -> subprocess.CompletedProcess[str]:
    if not (EXAMPLES / "node" / "node_modules").exists():
        pytest.skip("needs npm packages: make examples/node/node_modules/ready")
    return subprocess.run(
        ["node", EXAMPLES / "node" / "translate.mjs", bundle], text=True, capture_output=True,
        input="".join(f"{text}\n" for text in texts), encoding="utf-8",
    )  # fmt: skip


def test_node_example_translates_with_the_words_of_a_vocabulary(
    word_bundle: Path, in_python: list[str]
) -> None:
    done = in_node(word_bundle, [*sentences(), *AWKWARD])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == in_python


@pytest.mark.parametrize("engine", few_of(("tfexport", "onnxruntime"), "tfexport"))
def test_web_example_translates_with_the_words_of_a_vocabulary(
    engine: str, word_bundle: Path, in_python: list[str], tmp_path: Path
) -> None:
    with open_example(tmp_path / "web", word_bundle, engine) as page:
        wait_for_status(page, "Ready")
        page.find_element("id", "source").send_keys("de1 de2 nirgends")
        wait_for_status(page, "pieces in")
        assert page.find_element("id", "translation").text
        columns = [cell.text for cell in page.find_elements("css selector", "#map thead th")]
        assert columns == ["", "‹start›", "de1", "de2", "nirgends", "‹end›"]
        found = page.execute_async_script(TRANSLATE, [*sentences(), *AWKWARD])
    assert isinstance(found, list), found
    assert [text for _, text in found] == in_python


def test_web_example_says_how_to_export_what_it_cannot_read(
    model: tutorial.TutorialModel, tmp_path: Path
) -> None:
    bundle = tmp_path / "plain.bundle"
    export(
        model, bundle, settings=SETTINGS, split="whitespace", verify=False,
        source_tokenizer=f"{PAIR}:de", target_tokenizer=f"{PAIR}:en",
    )  # fmt: skip
    with open_example(tmp_path / "web", bundle, "onnxruntime") as page:
        wait_for_status(page, "export it with --attention")


REFUSED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "other tokenizer": (
        {"tokenizers": {"target": {"kind": "moses_bpe", "file": "target.json"}}},
        ["no source tokenizer", "target.json, is of the kind moses_bpe"],
    ),
    "languages": (
        {"languages": {"ids": {"de": 4}, "source_place": "before", "target_place": None}},
        ["told languages by tokens"],
    ),
    "module": (
        {"module": {"padded": False, "inputs": [{"name": "input_ids"}]}},
        ["other inputs than ids"],
    ),
}


@pytest.mark.parametrize("case", [*REFUSED, "spacy"])
def test_node_example_refuses_what_it_would_get_wrong(
    case: str, word_bundle: Path, tmp_path: Path
) -> None:
    bundle = tmp_path / "a.bundle"
    shutil.copytree(word_bundle, bundle)
    changes, said = REFUSED.get(case, ({}, ["split as spacy:de", "whitespace or basic_english"]))
    manifest = json.loads((bundle / "manifest.json").read_text(encoding="utf-8"))
    if case == "spacy":
        file = bundle / manifest["tokenizers"]["source"]["file"]
        words = json.loads(file.read_text(encoding="utf-8"))
        write(file, json.dumps(words | {"split": "spacy:de"}))
    write(bundle / "manifest.json", json.dumps(manifest | changes))
    done = in_node(bundle, ["de1"])
    assert (done.returncode, done.stdout) == (1, "")
    for part in said:
        assert part in done.stderr
