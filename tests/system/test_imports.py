"""Libraries that each part imports: the runtime and the command line need no torch and no onnx."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import VERSION_1

BLOCK = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in {blocked}:
            raise ImportError(f'{{name}} is blocked', name=name)
sys.meta_path.insert(0, Block())
"""
TORCH_SIDE = ("torch", "onnx", "onnx_ir", "onnxscript", "safetensors")
CLUSTER = ("ray", "pyarrow", "pandas")


def run(
    code: str, *args: str, blocked: tuple[str, ...] = TORCH_SIDE, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BLOCK.format(blocked=set(blocked)) + code, *args],
        input=stdin,
        capture_output=True,
        text=True,
    )


def modules_after(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    names = done.stdout.split()
    return {*names, *(name.partition(".")[0] for name in names)}


def test_package_imports_nothing_heavy() -> None:
    heavy = {*TORCH_SIDE, *CLUSTER, "numpy", "onnxruntime", "click", "rich"}
    assert not modules_after("import tfexport, tfexport.errors, tfexport.graph_io") & heavy


def test_command_line_starts_without_the_heavy_libraries() -> None:
    heavy = {*TORCH_SIDE, *CLUSTER, "numpy", "onnxruntime"}
    assert not modules_after("import tfexport.cli.main") & heavy


def test_numpy_is_imported_while_the_files_of_a_bundle_are_checked() -> None:
    assert "numpy" not in modules_after("import tfexport.runtime.translator")


@pytest.mark.parametrize("own", [None, "7"])
def test_threads_of_openblas_sleep_soon_unless_a_program_says_when(own: str | None) -> None:
    name = "OPENBLAS_THREAD_TIMEOUT"
    environment = {key: value for key, value in os.environ.items() if key != name}
    # At the moment when numpy is imported, which reads it.
    code = "import os, sys, tfexport; assert 'numpy' not in sys.modules; print(os.environ[%r])"
    done = subprocess.run(
        [sys.executable, "-c", code % name],
        env=environment | ({name: own} if own else {}), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == (own or "20")


def test_runtime_decodes_where_torch_and_onnx_cannot_be_imported() -> None:
    done = run(
        "from tfexport.runtime import Translator\n"
        "print(Translator(sys.argv[1]).translate(['w12 w4'], max_length=3)[0].hypotheses)",
        str(VERSION_1),
    )
    assert done.returncode == 0, done.stderr
    assert "Hypothesis(tokens=[" in done.stdout


@pytest.mark.parametrize("command", ["translate", "inspect"])
def test_command_runs_where_torch_and_onnx_cannot_be_imported(command: str) -> None:
    done = run("from tfexport.cli.main import main; main()", command, str(VERSION_1), stdin="w4\n")
    assert done.returncode == 0, done.stderr


def test_quantising_imports_no_torch(tmp_path: Path) -> None:
    output = str(tmp_path / "q.bundle")
    code = "from tfexport.export import quantize\nprint(quantize(*sys.argv[1:]).weights)"
    done = run(code, str(VERSION_1), output, blocked=("torch", "safetensors"))
    assert done.stdout == "int8\n", done.stderr


def test_runtime_imports_nothing_of_a_cluster() -> None:
    assert not modules_after("import tfexport.runtime") & {*CLUSTER}


def test_translator_imports_nothing_that_only_some_calls_need() -> None:
    code = "from tfexport.runtime import Translator\nTranslator({!r}).translate(['w4'])"
    seldom = {"numpy.random", "importlib.metadata", "email.message"}  # 5 MB
    runtime = "tfexport.runtime."
    parts = (
        "files", "scorer", "speech", "streaming", "search.beam", "search.required", "terms",
        "term_tokens", "text.bpe_tokenizers",
    )  # fmt: skip
    seldom |= {runtime + part for part in parts}  # a tenth of the time to the first sentence
    assert not modules_after(code.format(str(VERSION_1))) & seldom


def test_a_server_starts_without_what_detects_languages() -> None:
    code = "from tfexport.serve.protocols.libretranslate import routes\nroutes(None)"
    assert "py3langid" not in modules_after(code)  # 120 MB, and most of a second


def test_worker_of_a_corpus_decodes_where_torch_and_onnx_cannot_be_imported() -> None:
    done = run(
        "from pathlib import Path\nimport tfexport.corpus\n"
        "from tfexport.corpus.decoders import open_decoder\n"
        "from tfexport.corpus.row_decoder import CorpusRow, Task\n"
        "from tfexport.runtime.parallel.cpu import ThreadLayout\n"
        "decoder = open_decoder(Path(sys.argv[1]), ThreadLayout(threads=1), Task())\n"
        "print(decoder.decode([CorpusRow('w12 w4', 0)]))",
        str(VERSION_1),
    )
    assert done.returncode == 0, done.stderr
    assert "error=None" in done.stdout


def test_threads_of_a_corpus_need_no_ray(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("w12 w4\n")
    done = run(
        "from tfexport.cli.main import main; main()",
        *("corpus", str(VERSION_1), str(tmp_path / "in.txt"), str(tmp_path / "out.txt")),
        blocked=("ray", "pandas", *TORCH_SIDE),
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out.txt").read_text().strip()


def test_threads_of_a_corpus_do_not_import_ray(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("w12 w4\n")
    code = f"import tfexport.corpus as c; c.translate_corpus({str(VERSION_1)!r}, "
    code += f"{str(tmp_path / 'in.txt')!r}, {str(tmp_path / 'out.txt')!r})"
    assert not modules_after(code) & {"ray", "pandas"}


@pytest.mark.parametrize(
    ("blocked", "message"),
    [
        ("ray", "a cluster's workers need Ray Data. Install it with: pip install '"),
        ("pyarrow", "a corpus needs pyarrow. Install it with: pip install '"),
    ],
)
def test_corpus_without_its_libraries_says_what_to_install(
    tmp_path: Path, blocked: str, message: str
) -> None:
    done = run(
        "from tfexport.cli.main import main; main()",
        *("corpus", str(VERSION_1), str(tmp_path), "never", "--engine", "ray"),
        blocked=(blocked,),
    )
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_export_without_torch_says_what_to_install() -> None:
    done = run(
        "from tfexport.cli.main import main; main()",
        *("onnx", "--checkpoint", "model.pt", "-o", "never.bundle"),
    )
    assert done.returncode == 1
    assert "pip install 'torch>=2.10' 'onnx>=" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("code", "named"),
    [
        ("from tfexport.export import export", "export needs "),
        ("from tfexport.model_src import Transformer", "tfexport.model_src needs torch."),
        ("import tfexport.model_src.checkpoint.read", "tfexport.model_src needs torch."),
    ],
)
def test_python_without_torch_says_what_to_install(code: str, named: str) -> None:
    done = run(code)
    error = done.stderr.splitlines()[-1]
    assert error.startswith("tfexport.errors.MissingDependencyError: ")
    assert named in error
    assert "Install it with: pip install 'torch>=2.10' 'onnx>=" in error


@pytest.mark.parametrize(
    "arguments",
    [
        ("onnx", "--checkpoint", "model.pt", "-o", "never"),
        ("onnx", "--module", "json:loads", "-o", "never"),
        ("torchscript", "--checkpoint", "model.pt", "-o", "never"),
        ("verify", str(VERSION_1), "--checkpoint", "model.pt"),
    ],
)
def test_a_verb_that_needs_torch_names_it_and_its_extra(arguments: tuple[str, ...]) -> None:
    done = run("from tfexport.cli.main import main; main()", *arguments)
    assert done.returncode == 1
    assert (
        "this needs torch, which is not installed and is part of the extra 'export'. Ins"
        in done.stderr
    )


def test_ids_need_no_tokenizer_library(demo_folder: Path) -> None:
    libraries = ("tokenizers", "sentencepiece")
    code = (
        "from pathlib import Path\nfrom tfexport.runtime import Translator\n"
        "import tfexport.bundle, dataclasses, shutil, tempfile\n"
        "folder = Path(tempfile.mkdtemp()) / 'a.bundle'\n"
        "shutil.copytree(sys.argv[1], folder)\n"
        "manifest = tfexport.bundle.read_manifest(folder)\n"
        "entry = tfexport.bundle.TokenizerEntry('tokenizers', 'source-vocab.txt')\n"
        "manifest = dataclasses.replace(manifest, tokenizers={'source': entry, 'target': entry})\n"
        "(folder / 'manifest.json').unlink()\n"
        "tfexport.bundle.write_manifest(folder, manifest)\n"
        "translator = Translator(folder)\n"
        "print(translator.generate([[12, 4]], max_length=2))\n"
        "translator.translate(['w4'])"
    )
    done = run(code, str(VERSION_1), blocked=(*TORCH_SIDE, *libraries))
    assert "Hypothesis(tokens=[" in done.stdout
    assert "pip install 'tokenizers>=" in done.stderr


def test_tokenizer_library_that_is_missing_is_named(demo_folder: Path, tmp_path: Path) -> None:
    code = (
        "from pathlib import Path\nfrom tfexport.runtime.text.tokenizer import load_tokenizer\n"
        "load_tokenizer(Path(sys.argv[1]), 'tokenizers', 6000, 0)"
    )
    done = run(code, str(demo_folder / "tokenizer.json"), blocked=("tokenizers",))
    assert "MissingDependencyError" in done.stderr
    assert "pip install 'tokenizers>=" in done.stderr
