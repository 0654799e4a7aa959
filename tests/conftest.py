"""What all tests share: the demo model, and one small exported bundle a worker."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
import torch
from filelock import FileLock
from hypothesis import HealthCheck, settings

from tests import tutorial
from tfexport.export import export_bundle, pipeline
from tfexport.export.weights import content_key
from tfexport.model_src.checkpoint.read import Checkpoint

REPOSITORY = Path(__file__).parents[1]
Once = Callable[[str, Callable[[Path], object]], Path]
SETTINGS: dict[str, Any] = {"pad_id": 0, "bos_id": 1, "eos_id": 2}

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
def _one_thread() -> None:
    # Workers run side by side; more threads each would only take turns.
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed() -> None:
    # Every test draws the same inputs alone as it does in company.
    torch.manual_seed(0)


_GRAPHS: dict[str, dict[str, ir.Model]] = {}


@pytest.fixture
def graphs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Export the graphs of one model once a worker, for tests of what is done with them."""
    export = pipeline._export_graphs

    def again(checkpoint: Checkpoint, *options: Any) -> dict[str, ir.Model]:
        weights = sorted((name, content_key(w.numpy())) for name, w in checkpoint.weights.items())
        key = repr((checkpoint.config, weights, options[:-1]))
        if key not in _GRAPHS:
            _GRAPHS[key] = export(checkpoint, *options)
        return {name: graph.clone() for name, graph in _GRAPHS[key].items()}

    monkeypatch.setattr(pipeline, "_export_graphs", again)


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Once:
    """Make a file or folder if no worker has done so yet."""
    base = tmp_path_factory.getbasetemp()
    base = base if worker_id == "master" else base.parent

    def get(name: str, make: Callable[[Path], object]) -> Path:
        with FileLock(base / f"{name}.lock"):
            if not (base / name).exists():
                make(base / name)
        return base / name

    return get


@pytest.fixture(scope="session")
def demo_folder() -> Path:
    return REPOSITORY / "examples" / "de-en"


@pytest.fixture(scope="session")
def tutorial_model() -> tutorial.TutorialModel:
    # Chosen by its outputs: they differ from input to input, in tokens and in length.
    return tutorial.make(
        seed=38, scale=3.0, d_model=8, num_heads=2, encoder_layers=1, decoder_layers=1, d_ff=12
    )


@pytest.fixture(scope="session")
def words() -> list[str]:
    return ["<pad>", "<s>", "</s>", "<unk>", *(f"w{i}" for i in range(4, 17))]


@pytest.fixture(scope="session")
def tiny_bundle(
    tmp_path_factory: pytest.TempPathFactory,
    tutorial_model: tutorial.TutorialModel,
    words: list[str],
) -> Path:
    """A bundle of the tutorial model with a vocabulary of whole words. Do not change it."""
    folder = tmp_path_factory.mktemp("tiny")
    source, target = folder / "source.txt", folder / "target.txt"
    source.write_text("\n".join(words) + "\n", encoding="utf-8")
    target.write_text("\n".join([*words, "w17", "w18"]) + "\n", encoding="utf-8")
    export_bundle(
        tutorial_model,
        folder / "tiny.bundle",
        config={**SETTINGS, "unk_id": 3, "add_source_eos": True},
        source_tokenizer=source,
        target_tokenizer=target,
    )
    return folder / "tiny.bundle"


@pytest.fixture(scope="session")
def tiny_checkpoint(
    tmp_path_factory: pytest.TempPathFactory, tutorial_model: tutorial.TutorialModel
) -> Path:
    """The same model's state dict as a file."""
    path = tmp_path_factory.mktemp("checkpoint") / "model.pt"
    torch.save(tutorial_model.state_dict(), path)
    return path
