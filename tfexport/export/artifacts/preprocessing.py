"""What stands before a model of transformers, as its folder's files say, for the manifest."""

import dataclasses
from pathlib import Path
from typing import Any

from tfexport.errors import ConfigError, ParityError
from tfexport.export.artifacts.picture_processors import picture_steps
from tfexport.export.artifacts.sound_processors import sound_part
from tfexport.export.artifacts.transformers_call import TransformersModel
from tfexport.export.parity.pictures import compare_pictures
from tfexport.export.parity.sounds import compare_sounds
from tfexport.export.quiet import quiet
from tfexport.export.reference.library_class import first_line
from tfexport.preprocessing import check_preprocessing

FILES = ("preprocessor_config.json", "processor_config.json")
_OF_SOUND = ("input_features", "input_values")
_OF_PICTURES = ("pixel_values", "flattened_patches")


@dataclasses.dataclass(frozen=True)
class Preprocessing:
    """The preprocessing of a folder.

    Attributes:
        part: for the manifest; None if there is none, or it is not supported.
        notes: what was compared, or why there is none.
    """

    part: dict[str, Any] | None = None
    notes: tuple[str, ...] = ()


def find_preprocessing(found: TransformersModel) -> Preprocessing:
    """The preprocessing of a model's folder, compared with transformers' own."""
    folder = found.folder
    if folder is None or not any((folder / name).is_file() for name in FILES):
        return Preprocessing()
    if found.inputs[0].name in _OF_SOUND:
        return _of_sound(found, folder)
    if found.inputs[0].name in _OF_PICTURES:
        return _of_pictures(found, folder)
    return Preprocessing()


def _of_sound(found: TransformersModel, folder: Path) -> Preprocessing:
    specs, name = [each.spec for each in found.inputs], found.inputs[0].name
    try:
        extractor = _feature_extractor(folder)
        part = sound_part(extractor, name)
        if problems := [*check_preprocessing("preprocessing", part)]:
            raise ConfigError("; ".join(problems))
        compared = compare_sounds(part, extractor, specs)
    except (ConfigError, ParityError) as error:
        text = f"the bundle takes arrays of {name}, not sound: {error.message}"
        return Preprocessing(None, (text,))
    kind = type(extractor).__name__
    text = (
        f"{compared.count} sounds became the same {name} as by transformers' {kind} (largest "
        f"difference {compared.largest:.1e})"
    )
    if not compared.files:
        text += "; files of other rates were not compared, as soundfile or soxr is not installed"
    return Preprocessing(part, (text,))


def _feature_extractor(folder: Path) -> Any:
    """The folder's feature extractor.

    Raises:
        ConfigError: transformers does not make one.
    """
    import transformers  # noqa: PLC0415 - optional, and slow to import

    made: Any = transformers.AutoFeatureExtractor
    try:
        with quiet():
            return made.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        version = f"transformers {transformers.__version__}"
        raise ConfigError(f"{version} cannot read {FILES[0]}: {first_line(error)}") from error


def _of_pictures(found: TransformersModel, folder: Path) -> Preprocessing:
    specs, name = [each.spec for each in found.inputs], found.inputs[0].name
    try:
        processor = _image_processor(folder)
        part: dict[str, Any] = {"kind": "picture", "input": name, "steps": picture_steps(processor)}
        if problems := [*check_preprocessing("preprocessing", part)]:
            raise ConfigError("; ".join(problems))
        count, largest = compare_pictures(part, processor, specs)
    except (ConfigError, ParityError) as error:
        text = f"the bundle takes arrays of {name}, not pictures: {error.message}"
        return Preprocessing(None, (text,))
    kind = type(processor).__name__
    text = f"{count} pictures became the same {name} as by transformers' {kind}"
    return Preprocessing(part, (f"{text} (largest difference {largest:.1e})",))


def _image_processor(folder: Path) -> Any:
    """The folder's image processor that uses Pillow.

    Raises:
        ConfigError: transformers does not make one.
    """
    try:
        import PIL  # noqa: F401 - optional
    except ImportError:
        raise ConfigError("Pillow is not installed, which the extra vision installs") from None
    import transformers  # noqa: PLC0415 - optional, and slow to import

    made: Any = transformers.AutoImageProcessor
    try:
        with quiet():
            return made.from_pretrained(
                folder, backend="pil", local_files_only=True, trust_remote_code=False
            )
    except Exception as error:
        version = f"transformers {transformers.__version__}"
        raise ConfigError(f"{version} cannot read {FILES[0]}: {first_line(error)}") from error
