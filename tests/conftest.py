"""What all tests share: small exported models, each made once for all workers."""

from __future__ import annotations

import gc
import os
import shutil
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from filelock import FileLock
from hypothesis import HealthCheck, settings

import tfexport
from tests.support.paths import REPOSITORY
from tfexport import graph_io
from tfexport.graph_io import GraphSpec

# Torch takes seconds to import, and tests of the runtime need none: what needs it imports it.
if TYPE_CHECKING:
    from tests.support import tutorial

Once = Callable[[str, Callable[[Path], object]], Path]
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "master")  # set in those of pytest-xdist
SETTINGS: dict[str, Any] = {"pad_id": 0, "bos_id": 1, "eos_id": 2}
# Of the tutorial model. A test that takes it with this config finds it traced already.
CONFIG: dict[str, Any] = {**SETTINGS, "unk_id": 3, "add_source_eos": True}

# `make test-wheel` names the environment whose package it tests.
if installed := os.environ.get("TFEXPORT_TESTS_INSTALLED"):
    place = Path(tfexport.__file__).absolute()
    if not place.is_relative_to(installed):
        raise pytest.UsageError(f"tfexport is {place}, which is not in {installed}")

# Workers run side by side. Threads on cores of another would wait for them, and spin. Libraries
# count cores as they are imported, so this comes first.
_CORES: list[int] = []
_IDLE: dict[int, int] = {}  # of each core, when it was chosen
if hasattr(os, "sched_setaffinity") and WORKER != "master":
    _CORES = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {_CORES[int(WORKER.removeprefix("gw")) % len(_CORES)]})

# The machine is shared, so a slow example says nothing; what failed is found again from the
# printed blob.
settings.register_profile(
    "default",
    deadline=None,
    print_blob=True,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("default")


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    """Give sessions of onnxruntime one thread; it counts the cores of others as well."""
    if WORKER == "master":
        yield
        return
    import onnxruntime as ort

    begin = ort.InferenceSession.__init__

    def alone(self: Any, model: Any, sess_options: Any = None, *args: Any, **keywords: Any) -> None:
        options = sess_options or ort.SessionOptions()
        options.intra_op_num_threads = options.intra_op_num_threads or 1
        begin(self, model, options, *args, **keywords)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ort.InferenceSession, "__init__", alone)
        yield


@pytest.fixture(autouse=True, scope="session")
def _torch_as_collected(request: pytest.FixtureRequest) -> None:
    if "torch" in sys.modules:
        request.getfixturevalue("torch_once")


@pytest.fixture(autouse=True)
def _seed(request: pytest.FixtureRequest) -> None:
    # Every test draws the same inputs alone as it does in company.
    if "torch" in sys.modules:
        request.getfixturevalue("torch_once")
        sys.modules["torch"].manual_seed(0)
        sys.modules["torch"].set_num_threads(1)  # CTranslate2 sets those of the process


@pytest.fixture(autouse=True)
def _engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    # What looks at onnxruntime does so where the native engine is installed, too.
    if request.node.get_closest_marker("onnxruntime") is not None:
        monkeypatch.setattr(
            "tfexport.runtime.model.open_model.why_not_native", lambda manifest: "a test's wish"
        )


@pytest.fixture(autouse=True)
def _no_model(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    # What opens a model after all is not left out with the native engine.
    if request.node.get_closest_marker("no_model") is not None:
        monkeypatch.setattr(
            "tfexport.runtime.engine.open_model",
            lambda *_: pytest.fail("it opens a model: take the mark `no_model` from it"),
        )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Let the garbage collector leave out what is imported: it is kept, and takes long to scan."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        # By Python's thresholds it takes a tenth of an export.
        gc.set_threshold(20_000, 20, 50)
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes long, so that no worker is left with it when the others are done."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_collectstart() -> None:
    _go_where_it_is_idle()


def pytest_runtest_setup() -> None:
    _go_where_it_is_idle()


def _go_where_it_is_idle() -> None:
    """Let a worker that has no core of its own go to the one that was idle for longest."""
    if not _CORES or int(WORKER.removeprefix("gw")) < len(_CORES) or sys.platform != "linux":
        return
    lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
    ticks = {name: int(figures[3]) for name, *figures in lines if name.startswith("cpu")}
    idle = {core: ticks[f"cpu{core}"] for core in _CORES}
    since = {core: idle[core] - _IDLE.setdefault(core, idle[core]) for core in _CORES}
    if max(since.values()) > os.sysconf("SC_CLK_TCK"):  # a second
        os.sched_setaffinity(0, {max(since, key=since.__getitem__)})
        _IDLE.update(idle)


@pytest.fixture
def few_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let comparisons be short, for tests of what is made of them."""
    compare_few_shapes(monkeypatch)


@pytest.fixture
def no_beam_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out of modules' bundles the graph that takes longest, for tests of greedy search."""
    leave_out_beam_graph(monkeypatch)


@pytest.fixture
def only_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave both searches out of modules' bundles, for tests of what is exported, not of graphs."""
    leave_out_graphs(monkeypatch, graph_io.GENERATE, graph_io.BEAM)


@pytest.fixture
def no_search_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave beams and slots out of Transformers' bundles, for tests of greedy search."""
    leave_out_graphs(monkeypatch, graph_io.BEAM, graph_io.STEP)


@pytest.fixture
def no_step_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave slots out of Transformers' bundles, for tests of searches over whole batches."""
    leave_out_graphs(monkeypatch, graph_io.STEP)


def leave_out_graphs(patch: pytest.MonkeyPatch, *names: str) -> None:
    """Let bundles have no graphs of these names."""
    from tfexport.export import forms

    patch.setattr(forms, "FORMS", tuple(form for form in forms.FORMS if form.name not in names))


def leave_out_beam_graph(patch: pytest.MonkeyPatch) -> None:
    """Let bundles of modules search with beams step by step."""
    leave_out_graphs(patch, graph_io.BEAM)


def compare_few_shapes(patch: pytest.MonkeyPatch) -> None:
    """Compare one batch of two rows, and twelve tokens."""
    from tfexport.export.parity import checkpoint, eager_run, module

    patch.setattr(module, "BATCHES", (2,))
    patch.setattr(module, "MOST_TOKENS", 12)
    patch.setattr(checkpoint, "BATCHES", (2,))
    patch.setattr(checkpoint, "SOURCE_LENGTHS", (7,))
    patch.setattr(checkpoint, "LONGEST_SOURCE", 7)
    patch.setattr(eager_run, "NEW_TOKENS", 12)


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """Make a file or folder if no worker has done so yet."""
    base = tmp_path_factory.getbasetemp()
    return once_in((base if WORKER == "master" else base.parent) / "once")


def once_in(base: Path) -> Once:
    """See ``once``."""

    def get(name: str, make: Callable[[Path], object]) -> Path:
        made, unfinished = base / name, base / "unfinished" / name
        for path in (made, unfinished):
            path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{made}.lock"):
            if not made.exists():
                make(unfinished)
                unfinished.rename(made)
        return made

    return get


@pytest.fixture(scope="session")
def torch_once(once: Once) -> Iterator[None]:
    """Let torch take one thread, and trace each module once a run; see ``traces``."""
    import onnx_ir as ir
    import torch

    from tests.support.traces import trace_key
    from tfexport.export.graphs import exporter

    torch.set_num_threads(1)
    trace = exporter.export_graph_module
    if folder := os.environ.get("TFEXPORT_TESTS_TRACES"):  # of several runs
        once = once_in(Path(folder))

    def again(
        module: torch.nn.Module,
        spec: GraphSpec,
        opset: int,
        sizes: Sequence[Mapping[str, int]] | None = None,
    ) -> ir.Model:
        packages = {type(part).__module__.partition(".")[0] for part in module.modules()}
        found = any(isinstance(part, torch.fx.GraphModule) for part in module.modules())
        # One name may stand for several files, and a graph has no key.
        if found or not packages <= {"tests", "tfexport", "torch"}:
            return trace(module, spec, opset, sizes)
        name = f"{spec.name}-{trace_key(module, spec, opset, sizes)}.onnx"
        return ir.load(once(name, lambda path: ir.save(trace(module, spec, opset, sizes), path)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exporter, "export_graph_module", again)
        yield


@pytest.fixture(scope="session")
def demo_folder() -> Path:
    return REPOSITORY / "examples" / "de-en"


@pytest.fixture(scope="session")
def tutorial_model(torch_once: None) -> tutorial.TutorialModel:
    from tests.support import tutorial

    # Chosen by its outputs: they differ from input to input, in tokens and in length.
    return tutorial.make(
        seed=38, scale=3.0, d_model=8, num_heads=2, encoder_layers=1, decoder_layers=1, d_ff=12
    )


@pytest.fixture(scope="session")
def words() -> list[str]:
    return ["<pad>", "<s>", "</s>", "<unk>", *(f"w{i}" for i in range(4, 17))]


@pytest.fixture(scope="session")
def tiny_bundle(
    once: Once,
    tmp_path_factory: pytest.TempPathFactory,
    tutorial_model: tutorial.TutorialModel,
    words: list[str],
) -> Path:
    """A bundle of the tutorial model with a vocabulary of whole words. Do not change it."""
    folder = tmp_path_factory.mktemp("tiny")
    source, target = folder / "source.txt", folder / "target.txt"
    source.write_text("\n".join(words) + "\n", encoding="utf-8")
    target.write_text("\n".join([*words, "w17", "w18"]) + "\n", encoding="utf-8")

    def make(path: Path) -> None:
        from tfexport.export import export

        export(
            tutorial_model, path, config=CONFIG, source_tokenizer=source, target_tokenizer=target
        )

    # A copy for each worker: beside a bundle stands what was measured with it.
    return Path(shutil.copytree(once("tiny.bundle", make), folder / "tiny.bundle"))


@pytest.fixture(scope="session", params=["fused", "portable"])
def tiny_graph(
    request: pytest.FixtureRequest, once: Once, tutorial_model: tutorial.TutorialModel
) -> Path:
    """The tutorial model's generate graph, fused.onnx and portable.onnx. Do not change it."""

    def make(path: Path) -> None:
        from tfexport.export import export

        portable = request.param == "portable"
        export(tutorial_model, path, graph="generate", config=CONFIG, portable=portable)

    return once(f"tiny/{request.param}.onnx", make)


@pytest.fixture(scope="session")
def tiny_checkpoint(
    tmp_path_factory: pytest.TempPathFactory, tutorial_model: tutorial.TutorialModel
) -> Path:
    """The same model's state dict as a file."""
    import torch

    path = tmp_path_factory.mktemp("checkpoint") / "model.pt"
    torch.save(tutorial_model.state_dict(), path)
    return path
