"""Settings of a server, and of each of its models."""

import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tfexport.errors import ConfigError, Problem, join_problems, join_some, nearest_name, shown
from tfexport.runtime.model.engine_name import ENGINES, EngineName
from tfexport.runtime.text.language_codes import PAIR
from tfexport.runtime.text.sentences import JOINS, SPLITS, Join, Split

_MOST_BYTES_OF_A_CHARACTER = 12  # in JSON, as two escaped halves of a surrogate pair
_BYTES_BESIDE_TEXTS = 64 << 10
_COUNTS = ("slots", "max_queue", "max_tokens")


@dataclass(frozen=True)
class ModelSettings:
    """Settings of one model; None means the server's setting, or else the bundle's.

    Attributes:
        languages: the languages that it reads and writes, such as "de-en", or "de,fr-en".
        split_sentences: how texts are split; the default depends on what the bundle's model reads.
        join: what joins the translations of sentences; "auto" depends on the language.
        threads: see ``Settings``.
        slots: see ``Settings``.
        max_queue: see ``Settings``.
        max_tokens: see ``Settings``.
        engine: see ``Settings``.
        decoding: defaults of decoding options by name.
    """

    languages: str | None = None
    split_sentences: Split | None = None
    join: Join = "auto"
    threads: int | None = None
    slots: int | None = None
    max_queue: int | None = None
    max_tokens: int | None = None
    engine: EngineName | None = None
    decoding: Mapping[str, Any] = field(default_factory=dict)

    def problems(self, name: str) -> Iterator[Problem]:
        """Problems of the settings.

        Args:
            name: the name of the model, for messages.
        """
        if self.languages is not None and not (
            isinstance(self.languages, str) and PAIR.fullmatch(self.languages)
        ):
            text = f"{shown(self.languages)} of {name} is not a pair such as de-en, or de,fr-en"
            yield Problem("languages", text)
        for option, words in (("split_sentences", SPLITS), ("join", JOINS), ("engine", ENGINES)):
            value = getattr(self, option)
            if value is not None and value not in words:
                yield Problem(option, f"{shown(value)} of {name} is not one of {', '.join(words)}")
        for option in ("threads", *_COUNTS):
            value, least = getattr(self, option), int(option != "threads")
            if value is not None and (type(value) is not int or value < least):
                yield Problem(option, f"{shown(value)} of {name} is not a number from {least} on")
        if not isinstance(self.decoding, Mapping):
            yield Problem("decoding", f"{shown(self.decoding)} of {name} is not a table of options")


MODEL_SETTINGS = tuple(one.name for one in fields(ModelSettings))


@dataclass(frozen=True)
class Settings:
    """Settings of a server.

    Attributes:
        threads: the threads of a model; 0 for all cores that the process may use.
        max_queue: requests of a model that may wait.
        slots: rows of a model that are decoded at a time.
        timeout: seconds from a request's arrival to its answer.
        max_texts: texts of a request.
        max_characters: the most characters of all texts of a request.
        max_tokens: the most tokens of a sentence's translation.
        max_file_bytes: the most bytes of all files of a request, of models that take files.
        max_pixels: the most pixels of a picture; reading one takes up to 16 bytes for each.
        max_seconds: of a sound, of models that transcribe; of other models of sound a minute at
            most.
        max_connections: connections that are open at a time, unless the system's limit is lower;
            each takes up to 25 KB.
        key_file: a file with one key a line; None for no keys.
        glossaries: the folder in which callers store glossaries; None for none.
        cors_origins: whose pages may call the server from a browser.
        allowed_hosts: host names of a server that listens only to its own machine, besides
            "localhost".
        engine: what computes the models; see ``Translator``.
        decoding: defaults of decoding options by name; they override those of a bundle.
        models: name of a model to its settings.
    """

    threads: int = 0
    max_queue: int = 256
    slots: int = 32
    timeout: float = 60.0
    max_texts: int = 256
    max_characters: int = 100_000
    max_tokens: int = 1024
    max_file_bytes: int = 16 << 20
    max_pixels: int = 25_000_000
    max_seconds: float = 1800.0
    max_connections: int = 16_384
    key_file: Path | None = None
    glossaries: Path | None = None
    cors_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    engine: EngineName = "auto"
    decoding: Mapping[str, Any] = field(default_factory=dict)
    models: Mapping[str, ModelSettings] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigError: naming every invalid value.
        """
        problems = [
            Problem(name, f"{value} is not a number from 1 on")
            for name in (
                *_COUNTS,
                "max_texts",
                "max_characters",
                "max_connections",
                "max_file_bytes",
                "max_pixels",
            )
            if (value := getattr(self, name)) < 1
        ]
        for name in ("timeout", "max_seconds"):
            if not 0 < (seconds := getattr(self, name)) <= 86400:
                text = f"{seconds:g} is not a number of seconds above 0, up to 86400"
                problems.append(Problem(name, text))
        problems += [
            Problem("cors_origin", text)
            for origin in self.cors_origins
            if (text := _origin_problem(origin))
        ]
        for name, own in self.models.items():
            problems += own.problems(name)
        if problems:
            raise ConfigError(join_problems("serve", problems))

    def of(self, name: str) -> ModelSettings:
        """The settings of a model; what remains None is decided by its bundle."""
        own = self.models.get(name, ModelSettings())
        decoding = {**own.decoding, **self.decoding}
        shared = {
            one: getattr(self, one) if getattr(own, one) is None else getattr(own, one)
            for one in ("threads", "engine", *_COUNTS)
        }
        return ModelSettings(
            own.languages, own.split_sentences, own.join, decoding=decoding, **shared
        )

    @property
    def max_body(self) -> int:
        """Bytes of a request's body, if no model takes files."""
        return _BYTES_BESIDE_TEXTS + _MOST_BYTES_OF_A_CHARACTER * self.max_characters

    @property
    def max_body_of_files(self) -> int:
        """Bytes of a request's body, if a model takes files, in base64."""
        return self.max_body + 4 * self.max_file_bytes // 3


def _origin_problem(origin: str) -> str:
    """The problem of an origin, which browsers write in one form only; empty if it is valid."""
    if origin == "*":
        return ""
    parts = urlsplit(origin if "://" in origin else f"https://{origin}")
    try:
        port = (
            f":{parts.port}"
            if parts.port not in (None, {"http": 80, "https": 443}.get(parts.scheme))
            else ""
        )
    except ValueError:
        return f"{shown(origin)} is not an origin such as https://example.org"
    host = parts.hostname or ""
    right = f"{parts.scheme}://{f'[{host}]' if ':' in host else host}{port}"
    if not host or " " in origin:
        return f"{shown(origin)} is not an origin such as https://example.org, nor '*' for all"
    if origin != right:
        return f"{shown(origin)} is not an origin in the form that browsers send; write {right!r}"
    return ""


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_PATHS = ("api_key_file", "glossaries")  # next to the file, if they are not absolute
_TABLES = ("decoding", "models")


@dataclass(frozen=True)
class SettingsFile:
    """The content of a settings file: TOML, with a table for each model.

    Attributes:
        bundles: the bundles to serve.
        server: options of ``tfexport serve`` by name.
        decoding: decoding options of all models.
        models: name of a model to its settings; its decoding options override those of all models.
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
        path: the path of the file; paths in it are relative to its folder.
        known: options that it may hold besides ``bundles``, ``decoding`` and ``models``.

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
        yield Problem(None, f"bundles: {shown(bundles)} is not a list of paths")
    for name in _PATHS:
        if not isinstance(values.get(name, ""), str):
            yield Problem(None, f"{name}: {shown(values[name])} is not a path")
    for name in _TABLES:
        if not isinstance(values.get(name, {}), dict):
            yield Problem(None, f"{name}: {shown(values[name])} is not a table")
    models = values.get("models", {})
    for name, table in models.items() if isinstance(models, dict) else ():
        if not isinstance(table, dict):
            yield Problem(None, f"models.{name}: {shown(table)} is not a table")
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
