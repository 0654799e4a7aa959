"""The registry of layouts: all that detection, the option ``layout`` and the docs know of."""

from tfexport.errors import ConfigError, Message, Option
from tfexport.model_src.checkpoint.layout import Layout
from tfexport.model_src.checkpoint.layouts.annotated import ANNOTATED
from tfexport.model_src.checkpoint.layouts.native import NATIVE
from tfexport.model_src.checkpoint.layouts.nn_transformer import NN_TRANSFORMER, REBUILT
from tfexport.model_src.checkpoint.layouts.rmsnorm import RMSNORM

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


for _layout in (NN_TRANSFORMER, REBUILT, ANNOTATED, RMSNORM, NATIVE):
    register_layout(_layout)


def require_layout_name(name: str | None) -> None:
    """Refuse a name that no layout has.

    Raises:
        ConfigError: naming those there are.
    """
    if name is not None and name not in LAYOUTS:
        choices = ", ".join(repr(choice) for choice in LAYOUTS)
        raise ConfigError(Message(Option("layout"), f": {name!r} is not one of {choices}."))
