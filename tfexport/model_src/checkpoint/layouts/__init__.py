"""The registry of layouts, used by detection and the option ``layout``.

Every ``Layout`` that a file of this folder defines is registered. The command line lists their
names without torch, in ``tfexport.cli.console.LAYOUTS``.
"""

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from tfexport.errors import ConfigError, Message, Option
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


def _read_folder() -> list[Layout]:
    """The layouts of this folder's files, by precedence and name."""
    modules = [import_module(f"{__name__}.{file.name}") for file in iter_modules(__path__)]
    found = [it for module in modules for it in vars(module).values() if isinstance(it, Layout)]
    return sorted(found, key=lambda layout: (-layout.precedence, layout.name))


for _layout in _read_folder():
    register_layout(_layout)
