"""The settings file of a server: TOML, with a table for each model."""

import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfexport.errors import ConfigError, Problem, join_problems, join_some, shown
from tfexport.near_names import nearest_name
from tfexport.serve.settings import MODEL_SETTINGS, ModelSettings

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_PATHS = ("api_key_file",)  # beside the file, if they are not absolute
_TABLES = ("decoding", "models")


@dataclass(frozen=True)
class SettingsFile:
    """What a settings file holds.

    Attributes:
        bundles: to serve.
        server: options of ``tfexport serve`` by name.
        decoding: decoding options of all models.
        models: name of a model to its settings; its decoding options are over those of all.
    """

    bundles: tuple[str, ...] = ()
    server: Mapping[str, Any] = field(default_factory=dict)
    decoding: Mapping[str, Any] = field(default_factory=dict)
    models: Mapping[str, ModelSettings] = field(default_factory=dict)

    def settings_of(self, names: Collection[str]) -> dict[str, ModelSettings]:
        """Settings of models, with the decoding options of all."""
        found = {}
        for name in [*names, *self.models]:
            own = self.models.get(name, ModelSettings())
            decoding = {**self.decoding, **own.decoding}
            found[name] = ModelSettings(**{**_values(own), "decoding": decoding})
        return found


def read_settings(path: Path, known: Collection[str]) -> SettingsFile:
    """Read a settings file.

    Args:
        path: of the file; paths in it are relative to its folder.
        known: options that it may hold beside ``bundles``, ``decoding`` and ``models``.

    Raises:
        ConfigError: naming everything that is wrong with it.
        OSError: it cannot be read.
    """
    try:
        values = tomllib.loads(path.read_bytes().decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is not TOML: {error}") from None
    problems = list(_problems(values, known))
    if problems:
        raise ConfigError(join_problems(str(path), problems))
    folder = path.parent
    server = {name: value for name, value in values.items() if name not in ("bundles", *_TABLES)}
    for name in _PATHS:
        if name in server:
            server[name] = str(folder / server[name])
    return SettingsFile(
        tuple(str(folder / bundle) for bundle in values.get("bundles", ())),
        server,
        values.get("decoding", {}),
        {name: ModelSettings(**table) for name, table in values.get("models", {}).items()},
    )


def _values(settings: ModelSettings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in MODEL_SETTINGS}


def _problems(values: Mapping[str, Any], known: Collection[str]) -> Iterator[Problem]:
    yield from _unknown(values, [*known, "bundles", *_TABLES], "")
    bundles = values.get("bundles", [])
    if not isinstance(bundles, list) or not all(isinstance(one, str) for one in bundles):
        yield Problem(None, f"bundles: {shown(bundles)} is no list of paths")
    for name in _PATHS:
        if not isinstance(values.get(name, ""), str):
            yield Problem(None, f"{name}: {shown(values[name])} is no path")
    for name in _TABLES:
        if not isinstance(values.get(name, {}), dict):
            yield Problem(None, f"{name}: {shown(values[name])} is no table")
    models = values.get("models", {})
    for name, table in models.items() if isinstance(models, dict) else ():
        if not isinstance(table, dict):
            yield Problem(None, f"models.{name}: {shown(table)} is no table")
            continue
        yield from _unknown(table, MODEL_SETTINGS, f"models.{name}.")
        own = {key: value for key, value in table.items() if key in MODEL_SETTINGS}
        for problem in ModelSettings(**own).problems(name):
            yield Problem(None, f"models.{name}.{problem.option}: {problem.text}")


def _unknown(values: Mapping[str, Any], known: Collection[str], where: str) -> Iterator[Problem]:
    for name in values:
        if name not in known:
            near = nearest_name(name, known)
            hint = f"did you mean {near!r}?" if near else f"known: {join_some(sorted(known), 30)}"
            yield Problem(None, f"{where}{name}: is not a setting; {hint}")
