"""Overrides of a checkpoint's config: config files and ``key=value`` settings."""

import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfexport.errors import CheckpointError, ConfigError, Message, Option, join_problems, shown
from tfexport.file_access import describe_content, open_file
from tfexport.model_src.checkpoint.layout import Layout
from tfexport.model_src.checkpoint.unsupported import describe_config, is_ours
from tfexport.model_src.config import FRAMING, config_keys, read_framing, unknown_keys

SETTINGS = "settings"  # the origin of values that were given as ``key=value``
TABLE_KEYS = ("rename", "ignore")  # config keys that are not part of the model
MORE_KEYS = (*TABLE_KEYS, FRAMING)
Text = str | Message


@dataclass(frozen=True)
class Source:
    """Values that a file, a module or the caller gives.

    Attributes:
        origin: the name of the source in messages.
        values: the values, by tfexport's config keys or those of the layout's own config.json.
        path: the path of the file; None for values that are not from a file.
        optional: whether it is skipped if it is another project's, as a config.json that was found
            next to the checkpoint is.
    """

    origin: str
    values: Mapping[str, Any]
    path: Path | None = None
    optional: bool = False


@dataclass(frozen=True)
class Overrides:
    """Config values from outside the weights.

    Attributes:
        layers: origin and values of each source; later ones win.
        own_config: the values of the last source that is of the layout's own kind; empty without.
    """

    layers: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    own_config: Mapping[str, Any] = field(default_factory=dict)

    @functools.cached_property
    def values(self) -> dict[str, Any]:
        """Config keys to the values that win."""
        return fold(self.layers)[0]

    @functools.cached_property
    def origins(self) -> dict[str, str]:
        """Config keys to "config.json", "settings" and the like."""
        return fold(self.layers)[1]


def fold(
    layers: Iterable[tuple[str, Mapping[str, Any]]],
) -> tuple[dict[str, Any], dict[str, str]]:
    """Merge values of several origins, later ones overriding earlier ones; and their origins."""
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for origin, given in layers:
        values |= given
        origins |= dict.fromkeys(given, origin)
    return values, origins


def read_overrides(sources: Sequence[Source], layout: Layout) -> tuple[Overrides, list[Text]]:
    """Read every source as the layout reads it.

    Returns:
        The overrides, and notes about what was skipped.

    Raises:
        ConfigError: a named file is another project's, or there are unknown keys; all are named.
    """
    layers: list[tuple[str, Mapping[str, Any]]] = []
    notes: list[Text] = []
    problems: list[Text] = []
    own_config: Mapping[str, Any] = {}
    for source in sources:
        given: Mapping[str, Any] = source.values
        if layout.recognises(given):
            own_config, given = given, layout.read_config(given)
        elif source.optional and not is_ours(given):
            notes.append(_skipped(source))
            continue
        elif source.path and not source.optional and (other_project := describe_config(given)):
            raise ConfigError(f"{source.path}: the config of {other_project}")
        wrong = unknown_keys(given, (*config_keys(), *MORE_KEYS))
        try:
            framing = read_framing(given)
        except ValueError as error:
            wrong.append(str(error))
        else:
            layers += [] if framing is None else [framing]  # other values override it
        problems += [Message(name_origin(source.origin), f": {problem}") for problem in wrong]
        layers.append((source.origin, _config_values(given)))
    if problems:
        raise ConfigError(join_problems("config", problems))
    return Overrides(tuple(layers), own_config), notes


def _config_values(given: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: float("-inf") if value == "-inf" else value
        for key, value in given.items()
        if key not in MORE_KEYS
    }


def _skipped(source: Source) -> Message:
    kind = "is of Hugging Face" if describe_config(source.values) else "is not of tfexport"
    skipped = f"{source.origin} next to it {kind} and was skipped; "
    return Message(skipped, Option("config", "FILE"), " names one")


def name_origin(origin: str) -> str | Option:
    """An origin as a message names it."""
    return Option(SETTINGS) if origin == SETTINGS else origin


def parse_settings(settings: Iterable[str]) -> dict[str, Any]:
    """Parse ``key=value`` settings: true, false, numbers, -inf, else a string.

    Raises:
        ConfigError: a word without "=", or with a number that is too long to be read.
    """
    values: dict[str, Any] = {}
    problems = []
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key:
            problems.append(f"{shown(setting)} is not of the form key=value")
        try:
            values[key.strip()] = _parse_value(text.strip())
        except ValueError:
            problems.append(f"{key.strip()}: a number of {len(text)} digits")
    if problems:
        raise ConfigError(join_problems(Option(SETTINGS), problems))
    return values


def _parse_value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    if re.fullmatch(r"[+-]?[0-9]+", text):
        return int(text)  # which refuses more digits than it can read quickly
    try:
        return float(text)
    except ValueError:
        return text


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
    if (other := describe_content(content)) is not None:
        raise CheckpointError(f"{path}: {other}")
    return parse_config(content, str(path))


def parse_config(content: bytes, name: str) -> dict[str, Any]:
    """Parse a JSON object of config values, within bounds of bytes and keys.

    Raises:
        CheckpointError: it is malformed or too large; ``name`` starts the message.
    """
    if len(content) > MAX_CONFIG_BYTES:
        raise CheckpointError(
            f"{name}: more than {MAX_CONFIG_BYTES} bytes, too large for a config."
        )
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{name}: not readable as JSON: {error}.") from None
    if not isinstance(values, dict):
        raise CheckpointError(f"{name}: holds a {type(values).__name__}, not a JSON object.")
    if len(values) > MAX_CONFIG_KEYS:
        raise CheckpointError(f"{name}: {len(values)} keys, more than {MAX_CONFIG_KEYS}.")
    return values
