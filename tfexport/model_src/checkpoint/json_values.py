"""JSON objects of config values, within bounds of bytes and keys."""

import json
from pathlib import Path
from typing import Any

from tfexport.errors import CheckpointError
from tfexport.file_access import describe_substitute, open_file

MAX_CONFIG_BYTES, MAX_CONFIG_KEYS = 2**20, 512


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object of config values from a file.

    Raises:
        CheckpointError: the file is missing, not JSON, not an object, or more than a config.
    """
    try:
        with open_file(path) as file:
            content = file.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}.") from None
    if (other := describe_substitute(path)) is not None:
        raise CheckpointError(f"{path}: {other}")
    return parse_config(content, str(path))


def parse_config(content: bytes, name: str) -> dict[str, Any]:
    """Parse a JSON object of config values, within bounds of bytes and keys.

    Raises:
        CheckpointError: it is malformed or too large; ``name`` begins the message.
    """
    if len(content) > MAX_CONFIG_BYTES:
        raise CheckpointError(f"{name}: more than {MAX_CONFIG_BYTES} bytes, so no config.")
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{name}: not readable as JSON: {error}.") from None
    if not isinstance(values, dict):
        raise CheckpointError(f"{name}: holds a {type(values).__name__}, not a JSON object.")
    if len(values) > MAX_CONFIG_KEYS:
        raise CheckpointError(f"{name}: {len(values)} keys, more than {MAX_CONFIG_KEYS}.")
    return values
