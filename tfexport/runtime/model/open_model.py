"""Choosing an engine and opening a bundle's model."""

from pathlib import Path

from tfexport.bundle import Manifest
from tfexport.errors import ConfigError, Problem, join_problems, shown
from tfexport.runtime.model.engine_name import ENGINES, EngineName
from tfexport.runtime.model.interface import Model
from tfexport.runtime.model.native_engine import warn_if_unusable, why_not_native
from tfexport.runtime.model.native_model import NativeModel


def check_engine(engine: str) -> None:
    """Refuse unknown names of engines.

    Raises:
        ConfigError: the name is unknown.
    """
    if engine not in ENGINES:
        text = f"{shown(engine)} is not one of {', '.join(ENGINES)}"
        raise ConfigError(join_problems("translator", [Problem("engine", text)]))


def choose_engine(manifest: Manifest, engine: EngineName = "auto") -> tuple[EngineName, str]:
    """Choose the engine for a bundle; also return why it is not the native one.

    With "auto" there is a warning if the native engine is installed, but cannot be used here.

    Args:
        manifest: the manifest of the bundle.
        engine: "auto" for the native engine if it is installed and covers the model.

    Raises:
        ConfigError: an unknown name, or the native engine is requested and cannot run the bundle.
    """
    check_engine(engine)
    if engine == "onnxruntime":
        return engine, "onnxruntime was requested"
    reason = why_not_native(manifest)
    if not reason:
        return "native", ""
    if engine == "native":
        text = f"the native engine cannot run this bundle: {reason}"
        raise ConfigError(join_problems("translator", [Problem("engine", text)]))
    warn_if_unusable(reason)
    return "onnxruntime", reason


def open_model(
    folder: Path, manifest: Manifest, engine: EngineName = "onnxruntime", threads: int = 0
) -> Model:
    """Open a bundle, whose files were checked.

    Args:
        folder: the folder of the bundle.
        manifest: the manifest of the bundle.
        engine: the engine of ``choose_engine``, not "auto".
        threads: threads of onnxruntime's pool, which all calls share, 0 for its own choice; or of
            each call of the native engine.

    Raises:
        BundleError: the engine cannot read it.
    """
    if engine == "native" and manifest.module is None:
        return NativeModel(folder, manifest, threads)
    # Imported here, because importing onnxruntime takes time.
    if engine == "native":
        from tfexport.runtime.model.native_decoder import NativeDecoder  # noqa: PLC0415

        return NativeDecoder(folder, manifest, threads)
    from tfexport.runtime.model.onnxruntime_model import ModuleModel, OnnxModel  # noqa: PLC0415

    kind = OnnxModel if manifest.module is None else ModuleModel
    return kind(folder, manifest, threads)
