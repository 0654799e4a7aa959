"""The command-line form of options in messages of the library."""

from tfexport.errors import Option

# Keywords whose option has another name.
_NAMES = {"layout": "format", "settings": "set", "output_attentions": "attention"}


def spell(option: Option) -> str:
    """``force=True`` as ``--force``, ``max_length`` as ``--max-length``."""
    flag = "--" + _NAMES.get(option.name, option.name).replace("_", "-")
    if option.value is None or option.value is True:
        return flag
    if option.value is False:
        return f"--no-{flag[2:]}"
    if isinstance(option.value, list):  # a repeatable option
        return " ".join(f"{flag} {value}" for value in option.value)
    return f"{flag} {option.value}"
