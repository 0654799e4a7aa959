"""The model of a bundle: a Transformer's, or a user's module's."""

from pathlib import Path

from tfexport.bundle import Manifest
from tfexport.runtime.model.bundle_model import Model
from tfexport.runtime.model.module_model import ModuleModel


def open_model(folder: Path, manifest: Manifest, threads: int = 0) -> Model:
    """Open the graphs of a bundle; see ``Model``."""
    kind = Model if manifest.module is None else ModuleModel
    return kind(folder, manifest, threads)
