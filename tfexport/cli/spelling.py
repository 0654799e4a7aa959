"""Options in messages of the library, as they are written on the command line."""

from tfexport.errors import Option

# Keywords that the command line calls by another name.
_NAMES = {"layout": "format", "settings": "set", "output_attentions": "attention"}


def spell(option: Option) -> str:
    """``force=True`` as ``--force``, ``max_length`` as ``--max-length``."""
    flag = "--" + _NAMES.get(option.name, option.name).replace("_", "-")
    if option.value is None or option.value is True:
        return flag
    if option.value is False:
        return f"--no-{flag[2:]}"
    if isinstance(option.value, list):  # an option that is repeated
        return " ".join(f"{flag} {value}" for value in option.value)
    return f"{flag} {option.value}"
