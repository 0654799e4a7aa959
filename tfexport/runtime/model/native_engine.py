"""The native engine, ``tfexport-native``: whether it can run a bundle, and opening it."""

from __future__ import annotations

import math
import mmap
import os
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tfexport import atomic
from tfexport.bundle import WEIGHTS, FileStamps, Manifest, large_files, noting, read_manifest
from tfexport.errors import BundleError, ConfigError, TfexportError, TfexportWarning, shown
from tfexport.file_access import open_file
from tfexport.runtime.model.mapped_memory import map_file, release_map
from tfexport.weight_table import WEIGHT_TABLE, read_weight_table

if TYPE_CHECKING:
    import tfexport_native


# The values of config keys that the engine supports; None for any number. A key that is missing
# here comes from a newer tfexport, and the engine would ignore it.
_KNOWN: Mapping[str, tuple[Any, ...] | None] = {
    **dict.fromkeys((
        "d_model", "num_heads", "num_encoder_layers", "num_decoder_layers", "d_ff",
        "source_vocab_size", "target_vocab_size", "head_dim", "norm_eps", "max_positions",
        "relative_buckets", "relative_max_distance", "decoder_num_heads", "decoder_d_ff",
        "residual_scale", "mask_fill", "dropout", "first_position", "tie_embeddings", "tie_output",
        "pad_id", "bos_id", "eos_id", "unk_id", "start_id", "add_source_bos", "add_source_eos",
    )),
    **dict.fromkeys((
        "norm_bias", "encoder_final_norm", "decoder_final_norm", "attention_bias",
        "feed_forward_bias", "output_bias", "positions_every_layer", "scale_embeddings",
        "scale_target_embeddings", "share_encoder_layers", "share_decoder_layers",
        "gated_feed_forward", "scale_scores", "padding_has_position",
    ), (True, False)),
    "norm": ("layer", "annotated", "rms"),
    "norm_placement": ("post", "pre", "res_post"),
    "decoder_norm_placement": ("same", "post", "pre", "res_post"),
    "activation": ("relu", "gelu", "gelu_tanh", "quick_gelu", "silu"),
    "positions": ("sinusoidal", "sinusoidal_halves", "sinusoidal_t2t", "learned", "none"),
    "source_embedding_norm": ("none", "tokens", "sum"),
    "target_embedding_norm": ("none", "tokens", "sum"),
    "relative_positions": ("none", "buckets", "buckets_every_layer", "shaw", "rotary"),
}  # fmt: skip
_AS_THEY_ARE = (
    "d_model", "num_heads", "head_dim", "d_ff", "num_encoder_layers", "num_decoder_layers", "norm",
    "norm_eps", "norm_placement", "activation", "source_embedding_norm", "target_embedding_norm",
    "residual_scale", "norm_bias", "encoder_final_norm", "decoder_final_norm", "attention_bias",
    "feed_forward_bias", "output_bias", "positions_every_layer", "share_encoder_layers",
    "share_decoder_layers", "gated_feed_forward", "scale_scores", "relative_positions",
    "relative_buckets", "relative_max_distance",
)  # fmt: skip


# Of the layers of an encoder that takes embeddings; what else is in its config is not used.
_OF_EMBEDDED = (
    "d_model", "num_heads", "head_dim", "d_ff", "num_encoder_layers", "norm", "norm_eps",
    "norm_placement", "activation", "residual_scale", "norm_bias", "encoder_final_norm",
    "attention_bias", "feed_forward_bias", "gated_feed_forward", "scale_scores",
)  # fmt: skip


def uncovered(config: Mapping[str, Any]) -> str:
    """A part of a config that the engine does not cover; empty if it covers everything."""
    for key, value in config.items():
        if key not in _KNOWN:
            return f"it does not know the config key {key!r}"
        if not _is_known(key, value):
            return f"it does not know {key} {shown(value)}"
    missing = [key for key in _KNOWN if key not in config]
    return f"the manifest's config has no {', '.join(missing)}" if missing else ""


def _is_known(key: str, value: Any) -> bool:
    values = _KNOWN[key]
    if key in ("d_model", "num_heads"):  # other values are computed from it
        return isinstance(value, int) and value > 0
    if values is None:
        return key == "mask_fill" or value is None or isinstance(value, int | float)
    return isinstance(value, str | bool) and value in values


def native_config(manifest: Manifest) -> dict[str, object]:
    """The config in the form of ``engine/config.h``, for a bundle that the engine covers."""
    config, limits, special = manifest.transformer, manifest.limits, manifest.special_ids
    assert config is not None
    rules, states = manifest.generation, manifest.states
    heads = config["decoder_num_heads"] or config["num_heads"]
    placement = config["decoder_norm_placement"]
    scale = math.sqrt(config["d_model"])
    scaled: Callable[[bool], float] = lambda yes: scale if yes else 1.0  # noqa: E731
    has_positions = config["positions"] != "none"
    elsewhere: dict[str, object] = {"num_encoder_layers": 0} if states else {}
    if manifest.embedded_encoder is not None:
        elsewhere |= encoder_config(manifest.embedded_encoder[0])
    return {
        **{key: config[key] for key in _AS_THEY_ARE},
        **elsewhere,
        "memory_width": states[0].axes[-1] if states else 0,
        "decoder_num_heads": heads,
        "decoder_head_dim": config["num_heads"] * config["head_dim"] // heads,
        "decoder_d_ff": config["decoder_d_ff"] or config["d_ff"],
        "decoder_norm_placement": (config["norm_placement"] if placement == "same" else placement),
        "source_vocab_size": limits.source_vocab_size,
        "target_vocab_size": limits.target_vocab_size,
        "max_positions": config["max_positions"] if has_positions else 0,
        "has_positions": has_positions,
        "source_scale": scaled(config["scale_embeddings"]),
        "target_scale": scaled(config["scale_embeddings"] and config["scale_target_embeddings"]),
        "unplaced_id": -1 if config["padding_has_position"] else special.pad,
        "pad_id": special.pad,
        "start_id": special.decoder_start,
        "eos_id": special.eos,
        "first_token": _or_none(rules.get("first_token")),
        "last_token": _or_none(rules.get("last_token")),
        "suppress_tokens": list(rules.get("suppress_tokens", ())),
    }


def encoder_config(config: Mapping[str, Any]) -> dict[str, object]:
    """The layers of an encoder that takes embeddings, in the form of ``engine/config.h``."""
    return {f"encoder.{key}": config[key] for key in _OF_EMBEDDED}


def _or_none(token: int | None) -> int:
    return -1 if token is None else token


DISTRIBUTION = "tfexport-native"
# Its interface that is called here; it is a distribution of its own, which may be older or newer.
_INTERFACE = 10
_NOT_INSTALLED = (
    "tfexport-native is not installed; in a clone of tfexport, 'pip install ./native' does it"
)
_WEIGHTS_VARIABLE = "TFEXPORT_NATIVE_WEIGHTS"  # how weights are packed; native/engine/tensors.cpp
_PACKED = b"TFNPACK\n"  # with which a packed file begins; native/engine/store.cpp


def why_not_native(manifest: Manifest) -> str:
    """Why the native engine cannot run a bundle; empty if the manifest shows no reason."""
    if manifest.transformer is None:
        return "the bundle contains a custom module, of which no decoder was recognised"
    if (manifest.quantization or {}).get("weights") == "int4":
        return "the native engine reads no int4 weights"
    for name in (WEIGHT_TABLE, WEIGHTS):
        if name not in manifest.files or not manifest.files[name].size:
            return f"the bundle has no {name}"
    encoder = manifest.embedded_encoder
    for config in (manifest.transformer, *(() if encoder is None else encoder[:1])):
        if missing := uncovered(config):
            return f"the native engine does not cover the model: {missing}"
    return why_not_here()


def why_not_here() -> str:
    """Why the native engine is not available; empty if it is."""
    try:
        import tfexport_native
        from tfexport_native.library import LIBRARY
    except ImportError as error:
        if error.name == "tfexport_native":
            return _NOT_INSTALLED
        return f"tfexport-native cannot be loaded: {error}"
    if (found := LIBRARY.tfn_version()) != _INTERFACE:
        return (
            f"tfexport-native in {Path(tfexport_native.__file__).parent} has interface {found}; "
            f"this tfexport needs {_INTERFACE}. Install both in the same version."
        )
    try:
        tfexport_native.instruction_sets()
    except tfexport_native.NativeError as error:
        return str(error)
    return ""


def warn_if_unusable(reason: str) -> None:
    """Warn that onnxruntime decodes, which is slower, though the engine is installed.

    Args:
        reason: of ``why_not_native``; nothing is said about bundles that it cannot run.
    """
    if reason != _NOT_INSTALLED and reason == why_not_here():
        warnings.warn(TfexportWarning(f"onnxruntime decodes instead: {reason}"), stacklevel=3)


def version() -> str:
    """Version of the installed engine."""
    from importlib import metadata  # slow to import, and seldom needed

    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:  # a folder on the path, not installed
        return "unknown"


def instruction_set() -> str:
    """The instruction set that the installed engine uses here."""
    import tfexport_native

    return tfexport_native.instruction_sets()[0]


def describe() -> str:
    """Describe the installed engine and its instruction set in one line."""
    return why_not_here() or f"{DISTRIBUTION} {version()}, {instruction_set()}"


def packed_file(folder: Path, manifest: Manifest) -> tfexport_native.PackedFile:
    """The path of the weights that are packed for this machine, next to the bundle."""
    import tfexport_native

    kind = instruction_set()
    if os.environ.get(_WEIGHTS_VARIABLE) == "float32":  # not those that are packed as stored
        kind += ".float32"
    path = folder.parent / f"{folder.name}.{kind}.packed"
    digests = [manifest.files[name].sha256 for name in (WEIGHTS, WEIGHT_TABLE)]
    return tfexport_native.PackedFile(path, ".".join(digests))


def pack_weights(bundle: str | os.PathLike[str], force: bool = False) -> Path:
    """Write a bundle's weights as the native engine needs them on this machine.

    The file is next to the bundle. Processes that open the bundle map it, instead of packing the
    weights. They do not compute sha256 again of large files that have not changed since: see
    ``tfexport.bundle.noting``.

    Args:
        bundle: its folder.
        force: replace a file of that name that does not hold packed weights.

    Returns:
        The path of the file.

    Raises:
        BundleError: the bundle is damaged, or the engine cannot read it.
        ConfigError: the native engine cannot run it.
        OutputExistsError: another file has its name.
    """
    folder = Path(os.path.normpath(bundle))
    manifest = read_manifest(folder)
    reason = why_not_native(manifest)
    if not reason:
        path = packed_file(folder, manifest).path
        atomic.check_free(path, force or _is_packed(path))
    with noting(folder) as manifest:
        if reason:
            raise ConfigError(f"{folder}: there is nothing to pack for onnxruntime: {reason}")
        return _pack(folder, manifest)


def _is_packed(path: Path) -> bool:
    """Whether a file holds packed weights, of any state of any bundle."""
    try:
        with open_file(path) as file:
            return file.read(len(_PACKED)) == _PACKED
    except OSError:
        return False


def pack_new(bundle: Path) -> None:
    """Let a bundle that was just written open fast on this machine, as ``pack_weights`` does.

    Small bundles do so anyway. Of one that the native engine cannot run, there is the note alone.
    What fails is a warning: the bundle is whole without it.
    """
    folder = Path(os.path.normpath(bundle))
    try:
        manifest = read_manifest(folder)
        native = not why_not_native(manifest)
        if not large_files(manifest) and not (
            native and packed_file(folder, manifest).path.exists()
        ):
            return
        with noting(folder):
            if native:
                _pack(folder, manifest)
    except (OSError, TfexportError) as error:
        text = f"{folder}: was written, but not all that lets it open fast: {error}"
        warnings.warn(TfexportWarning(text), stacklevel=3)


def _pack(folder: Path, manifest: Manifest) -> Path:
    import tfexport_native

    packed = packed_file(folder, manifest)
    stamps = FileStamps(folder / WEIGHTS, folder / WEIGHT_TABLE)
    try:
        tensors = _tensors(folder, map_file(folder / WEIGHTS))
        model = tfexport_native.Model(native_config(manifest), tensors)
        stamps.check()  # the file will say that it was made from these
        model.save(packed)
    except tfexport_native.NativeError as error:
        raise BundleError(f"{folder}: the native engine refuses: {error}") from None
    return packed.path


def _tensors(folder: Path, mapped: mmap.mmap) -> dict[str, tfexport_native.Tensor]:
    """The parameters of a bundle, as views of its mapped file."""
    import tfexport_native

    file = np.frombuffer(mapped, np.uint8)
    table = read_weight_table(folder, file.size)
    return {
        name: tfexport_native.Tensor(weight.values(file), weight.row_scales(file), mapped=True)
        for name, weight in table.items()
    }


def open_native(folder: Path, manifest: Manifest, threads: int) -> tfexport_native.Model:
    """Open a bundle's weights; those that ``pack_weights`` wrote are mapped.

    Args:
        folder: the folder of the bundle.
        manifest: the manifest of a bundle that the engine can run.
        threads: threads of every call.

    Raises:
        NativeError: the engine cannot read it.
    """
    mapped = map_file(folder / WEIGHTS)
    try:
        return _open(folder, mapped, manifest, threads)
    finally:
        release_map(mapped)  # packing has read all of it


def _open(
    folder: Path, mapped: mmap.mmap, manifest: Manifest, threads: int
) -> tfexport_native.Model:
    import tfexport_native

    packed = packed_file(folder, manifest)
    tensors = _tensors(folder, mapped)
    make = partial(tfexport_native.Model, native_config(manifest), tensors, threads)
    if packed.path.exists():
        try:
            return make(packed=packed)
        except tfexport_native.PackedFileError as error:
            warnings.warn(TfexportWarning(f"{error}: 'tfexport optimize'"), stacklevel=2)
    return make()
