"""Framings by name: special ids, and which of them stand around a source text, of known recipes.

A framing stands for several config values at once: ``framing=tutorial`` among the settings, or
``"framing": "tutorial"`` in a config.
"""

from collections.abc import Mapping
from typing import Any

from tfexport.errors import nearest_name, shown

FRAMING = "framing"  # a key of configs, beside those of the model
FRAMINGS: dict[str, dict[str, Any]] = {
    # "Language Translation with nn.Transformer and torchtext", of pytorch.org/tutorials.
    "tutorial": {
        "unk_id": 0,
        "pad_id": 1,
        "bos_id": 2,
        "eos_id": 3,
        "add_source_bos": True,
        "add_source_eos": True,
    },
}


def read_framing(given: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """The framing that config values name: its origin, and the values it stands for.

    Returns:
        None if they name none.

    Raises:
        ValueError: an unknown name; the message is a problem of the config.
    """
    if FRAMING not in given:
        return None
    name = given[FRAMING]
    if not isinstance(name, str) or name not in FRAMINGS:
        near = nearest_name(name, FRAMINGS) if isinstance(name, str) else None
        hint = "" if near is None else f"; did you mean {near!r}?"
        known = ", ".join(map(repr, FRAMINGS))
        raise ValueError(f"framing: {shown(name)} is not known{hint}; known are: {known}")
    return f"{FRAMING}={name}", FRAMINGS[name]
