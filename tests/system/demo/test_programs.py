"""The programs in examples/ that embed a model, each on the test set."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Once
from tests.export.artifacts.test_originals import FAMILIES, ROWS, greedy
from tests.export.artifacts.test_originals import LIMIT as SHORT
from tests.export.graphs.test_greedy import export_family
from tests.export.graphs.test_greedy import pad as padded
from tests.support.browser import TRANSLATE, open_example, wait_for_status
from tests.support.combinations import few_of
from tests.support.documents import read_blocks, run_in_shell
from tests.support.paths import REPOSITORY
from tests.system.demo.conftest import FOLDER

pytestmark = pytest.mark.slow
EXAMPLES = REPOSITORY / "examples"
Tokens = list[list[int]]


def lines(values: list[str]) -> str:
    return "".join(f"{value}\n" for value in values)


def ids(rows: Tokens) -> str:
    return lines([" ".join(map(str, row)) for row in rows])


def run(command: list[Any], text: str) -> str:
    done = subprocess.run(command, input=text.encode(), capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def needs_packages(example: str) -> None:
    if not (EXAMPLES / example / "node_modules").exists():
        pytest.skip(f"needs npm packages: make examples/{example}/node_modules/ready")


def test_python_with_onnxruntime_alone(
    generate: Path, pairs: list[list[str]], texts: list[str]
) -> None:
    script = EXAMPLES / "python" / "translate.py"
    assert "tfexport" not in {
        line.split()[1].partition(".")[0]
        for line in script.read_text().splitlines()
        if line.startswith(("import ", "from "))
    }
    python = REPOSITORY / ".venv-runtime" / ("Scripts" if os.name == "nt" else "bin") / "python"
    command = [python if python.exists() else sys.executable, script, generate]
    source = [pair[0] for pair in pairs]
    assert run([*command, FOLDER / "tokenizer.json"], lines(source)) == lines(texts)
    assert run([*command, FOLDER / "tokenizer.json"], "\n \nJa.\n\n").count("\n") == 4


def test_node(bundle: Path, pairs: list[list[str]], expected: Tokens, texts: list[str]) -> None:
    needs_packages("node")
    command: list[Any] = ["node", EXAMPLES / "node" / "translate.mjs", bundle]
    source = lines([pair[0] for pair in pairs])
    assert run([*command, "--ids"], source) == ids(expected)
    assert run(command, source) == lines(texts)
    assert run(command, "\n \n").splitlines() == ["", ""]
    done = subprocess.run(command, input=b"Ja.\n" + b"Wort " * 600, capture_output=True)
    assert done.returncode == 1
    assert b"line 2: more than the 512 tokens" in done.stderr


@pytest.fixture(scope="module")
def cpp(tmp_path_factory: pytest.TempPathFactory, torchscript: Path) -> Path:
    if not (shutil.which("cmake") and shutil.which("c++")):
        pytest.skip("needs cmake and a C++ compiler")
    folder = tmp_path_factory.mktemp("cpp")
    (folder / "examples").symlink_to(EXAMPLES)
    (folder / "model.ts").symlink_to(torchscript)
    page = REPOSITORY / "docs" / "embedding" / "cpp.md"
    shell = next(block for block in read_blocks(page) if not block.language)
    exporting, *building = shell.commands
    assert exporting.endswith(" -o model.ts")
    printed = run_in_shell("\n".join(building), folder).splitlines()[-1]
    assert printed == building[-1].partition("# ")[2]
    return folder / "build" / "cpp" / "generate"


@pytest.mark.exhaustive
def test_cpp_with_libtorch_alone(
    cpp: Path, torchscript: Path, rows: Tokens, expected: Tokens
) -> None:
    assert run([cpp, torchscript], ids(rows)) == ids(expected)
    assert run([cpp, torchscript], "\n") == "\n"
    for wrong, message in (("5 x\n", "not a line of token ids"), ("6000\n", "from 0 to 5999")):
        done = subprocess.run([cpp, torchscript], input=wrong, capture_output=True, text=True)
        assert done.returncode == 1
        assert done.stdout == ""
        assert message in done.stderr


@pytest.fixture(scope="module", params=["tfexport", "onnxruntime"])
def page(
    bundle: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Any]:
    """The web example in a headless Chromium, served with the bundle beside it."""
    folder = tmp_path_factory.mktemp("web") / "web"
    with open_example(folder, bundle, request.param) as browser:
        browser.folder = str(folder)
        yield browser


def test_web_page_translates_and_draws_the_attention(page: Any) -> None:
    wait_for_status(page, "Ready")
    box = page.find_element("id", "source")
    box.send_keys("Ich habe ein neues Buch gekauft.")
    wait_for_status(page, "pieces in")
    assert page.find_element("id", "translation").text == "I bought a new book."
    cells = page.find_elements("css selector", "#map td")
    columns = len(page.find_elements("css selector", "#map thead th")) - 1
    rows = len(page.find_elements("css selector", "#map tbody tr"))
    assert len(cells) == rows * columns
    colours = {cell.value_of_css_property("background-color") for cell in cells}
    assert len(colours) > 5, "a picture, not one colour"
    book = page.find_element("css selector", '#map td[title^="book. "][title*="·Buch"]')
    assert float(book.get_attribute("title").rpartition(" ")[2]) > 0.2
    before = [cell.get_attribute("title") for cell in cells]
    page.find_element("css selector", "#layer option:first-child").click()
    after = page.find_elements("css selector", "#map td")
    assert [cell.get_attribute("title") for cell in after] != before

    page.execute_script("const box = arguments[0]; box.value = ''; "
                        "box.dispatchEvent(new Event('input'));", box)  # fmt: skip
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(page, 30).until(lambda p: not p.find_element("id", "attention").is_displayed())
    assert page.find_element("id", "translation").text == ""
    assert page.get_log("browser") == []


def test_browser_gives_eagers_tokens(page: Any, pairs: list[list[str]], expected: Tokens) -> None:
    found = page.execute_async_script(TRANSLATE, [pair[0] for pair in pairs])
    assert isinstance(found, list), found
    assert [tokens for tokens, _ in found] == expected


@pytest.mark.parametrize("page", ["onnxruntime"], indirect=True)
@pytest.mark.parametrize("family", few_of(FAMILIES, "annotated-res_post"))
def test_browser_decodes_every_family(page: Any, family: str, once: Once) -> None:
    """Random models of every architecture, and rows that end at different steps."""
    served = Path(page.folder) / f"{family}.onnx"
    served.symlink_to(export_family(family, once))
    code = """
        const [name, ids, mask, limit, done] = arguments;
        (async () => {
          const ort = await import("onnxruntime-web");
          const graph = await (await fetch(name)).arrayBuffer();
          const session = await ort.InferenceSession.create(new Uint8Array(graph), {
            executionProviders: ["wasm"],
          });
          const shape = [ids.length, ids[0].length];
          const tensor = (rows) =>
            new ort.Tensor("int64", BigInt64Array.from(rows.flat(), BigInt), shape);
          const { sequences } = await session.run({
            input_ids: tensor(ids),
            attention_mask: tensor(mask),
            max_length: new ort.Tensor("int64", [BigInt(limit)], []),
          });
          const length = sequences.dims[1];
          return ids.map((_, i) =>
            Array.from(sequences.data.slice(i * length, (i + 1) * length), Number),
          );
        })().then(done, (error) => done(String(error)));
    """
    feeds = {name: value.tolist() for name, value in padded(ROWS).items()}
    found = page.execute_async_script(
        code, served.name, feeds["input_ids"], feeds["attention_mask"], SHORT
    )
    assert isinstance(found, list), found
    expected = [greedy(FAMILIES[family][1], row) for row in ROWS]
    assert [row[: row.index(2)] if 2 in row else row for row in found] == expected
