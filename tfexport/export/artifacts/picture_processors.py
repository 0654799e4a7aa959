"""The steps of a picture as a folder's image processor does them, for a manifest.

Image processors of transformers come in two forms: of Pillow, and of torchvision, which is the
default where that library is installed. Steps are those of Pillow, with which nearly all such
models were trained. torchvision rounds resized pixels otherwise: by one of 255 levels, of one value
in 500.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from tfexport.errors import ConfigError
from tfexport.preprocessing import PATCHES, RESAMPLE

Values = Mapping[str, Any]
Step = dict[str, Any]

_PLAIN = ("ViT", "DeiT", "Beit", "CLIP", "Siglip", "Blip")
_PAGES = ("Donut", "Nougat")  # they keep a page's form
_PATCHED = ("Pix2Struct",)
_NAME = "ImageProcessor"
_GRAY = 200  # Nougat's: a margin is lighter
_CUBIC, _GAP = 3, 2.0  # its thumbnails


def picture_steps(processor: Any) -> list[Step]:
    """The steps of an image processor of transformers, in their order.

    Raises:
        ConfigError: it is of another kind, or has a setting that is not supported.
    """
    name = type(processor).__name__.removesuffix("Pil").removesuffix("Fast")
    values = processor.to_dict()
    kind = name.removesuffix(_NAME)
    if kind in _PATCHED:
        return [_patches(values)]
    if kind in _PLAIN:
        return [*_plain(values), *_numbers(values)]
    if kind in _PAGES:
        return [*_page(values, kind), *_numbers(values)]
    known = ", ".join(f"{each}{_NAME}" for each in (*_PLAIN, *_PAGES, *_PATCHED))
    raise ConfigError(f"{name} is not supported; supported are {known}")


def _plain(values: Values) -> Iterator[Step]:
    if values.get("do_resize"):
        yield {"step": "resize", **_size(values, "size"), "resample": _method(values)}
    if values.get("do_center_crop"):
        yield {"step": "center_crop", **_area(values, "crop_size")}
    if values.get("do_pad"):
        raise ConfigError("do_pad is supported for DonutImageProcessor and NougatImageProcessor")


def _page(values: Values, kind: str) -> Iterator[Step]:
    area = _area(values, "size")
    nougat = kind == "Nougat"
    if nougat and values.get("do_crop_margin"):
        yield {"step": "crop_margin", "threshold": _GRAY}
    if values.get("do_align_long_axis"):
        yield {"step": "align_long_axis", **area}
    if values.get("do_resize"):
        yield {"step": "resize", "shortest_edge": min(area.values()), "resample": _method(values)}
    if values.get("do_thumbnail"):
        if nougat:
            smaller = {"resample": RESAMPLE[_CUBIC], "reducing_gap": _GAP}
        else:  # its 0, "nearest", is read as none
            smaller = {"resample": _method({"resample": values.get("resample") or _CUBIC})}
        yield {"step": "thumbnail", **area, **smaller}
    if values.get("do_pad"):
        yield {"step": "pad", **area}
    if values.get("do_center_crop") and not nougat:
        yield {"step": "center_crop", **_area(values, "crop_size")}


def _numbers(values: Values) -> Iterator[Step]:
    if values.get("do_rescale"):
        yield {"step": "rescale", "factor": values.get("rescale_factor")}
    if values.get("do_normalize"):
        numbers = {key: _per_channel(values, f"image_{key}") for key in ("mean", "std")}
        yield {"step": "normalize", **numbers}


def _patches(values: Values) -> Step:
    if values.get("is_vqa"):
        raise ConfigError(
            "is_vqa: true is not supported: the question is drawn into the picture, with a font "
            "that is not in the folder"
        )
    return {
        "step": PATCHES, **_area(values, "patch_size"), "most": values.get("max_patches"),
        "normalize": bool(values.get("do_normalize")),
    }  # fmt: skip


def _per_channel(values: Values, name: str) -> list[float]:
    given = values.get(name)
    return list(given) if isinstance(given, list | tuple) else [given] * 3  # type: ignore[list-item]


def _method(values: Values) -> str:
    found = values.get("resample")
    number = RESAMPLE.index("bilinear") if found is None else found
    if not isinstance(number, int) or not 0 <= number < len(RESAMPLE):
        raise ConfigError(f"resample: {found} is not from 0 to {len(RESAMPLE) - 1}")
    return RESAMPLE[number]


def _size(values: Values, name: str) -> dict[str, int]:
    found = _given(values, name)
    for keys in (("shortest_edge", "longest_edge"), ("shortest_edge",), ("height", "width")):
        if found.keys() == {*keys}:
            return {key: int(found[key]) for key in keys}
    raise ConfigError(f"{name}: {dict(found)} is not supported")


def _area(values: Values, name: str) -> dict[str, int]:
    found = _size(values, name)
    if "height" not in found:
        raise ConfigError(f"{name}: {found} has no height and width")
    return found


def _given(values: Values, name: str) -> dict[str, Any]:
    found = values.get(name)
    if not isinstance(found, Mapping):
        raise ConfigError(f"{name}: {found} is no size")
    return {key: value for key, value in found.items() if value is not None}
