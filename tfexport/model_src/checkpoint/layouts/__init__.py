"""The registry of layouts, used by detection and the option ``layout``.

``tfexport.layout_names`` is their table: each row is the name of a file of this folder, whose
``LAYOUT`` is registered. The other files hold what several families share.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from tfexport.errors import ConfigError, Message, Option
from tfexport.layout_names import LAYOUT_NAMES
from tfexport.model_src.checkpoint.layout import Layout

# Of layouts that know as many keys, the first is taken.
LAYOUTS: dict[str, Layout] = {}


def register_layout(layout: Layout) -> None:
    """Let checkpoints of one more family be read.

    Raises:
        ConfigError: another layout has the name.
    """
    if LAYOUTS.setdefault(layout.name, layout) is not layout:
        raise ConfigError(
            f"There is a layout {layout.name!r} already: {LAYOUTS[layout.name].title}."
        )


def layouts_of(config: Mapping[str, Any]) -> list[Layout]:
    """The layouts whose own kind of config.json this is, by its ``model_type``."""
    kind = config.get("model_type")
    return [layout for layout in LAYOUTS.values() if kind in layout.model_types]


def require_layout_name(name: str | None) -> None:
    """Refuse a name that no layout has.

    Raises:
        ConfigError: the name is unknown; known names are listed.
    """
    if name is not None and name not in LAYOUTS:
        choices = ", ".join(repr(choice) for choice in LAYOUTS)
        raise ConfigError(Message(Option("layout"), f": {name!r} is not one of {choices}."))


for _name in LAYOUT_NAMES:
    register_layout(import_module(f"{__name__}.{_name.replace('-', '_')}").LAYOUT)
