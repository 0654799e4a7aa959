"""``tfexport serve``."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tfexport.cli import INTERRUPTED
from tfexport.cli.console import spell
from tfexport.cli.decoding_options import decoding_options, engine_option, given
from tfexport.errors import ConfigError, Message, Option
from tfexport.runtime.options import SPECS
from tfexport.runtime.parallel.cpu import MOST_THREADS

if TYPE_CHECKING:
    from tfexport.serve import ModelSettings
    from tfexport.serve.settings import SettingsFile

PREFIX = "TFEXPORT_SERVE"  # of environment variables
# What a result contains is an option of each request, so the server has no default for it.
_OF_REQUESTS = ("return_", "max_input", "batch_", "attention_", "min_alternative", "seed")
_DECODING = [
    name for name, spec in SPECS.items()
    if spec.help is not None and not name.startswith(_OF_REQUESTS)
]  # fmt: skip


def _read_config(ctx: click.Context, _: click.Parameter, path: str | None) -> "SettingsFile | None":
    """Read the settings file first: it has the defaults of the other options."""
    if path is None or ctx.resilient_parsing:
        return None
    from tfexport.serve.settings import read_settings

    names = [name for one in ctx.command.params if (name := one.name) and _in_file(one)]
    found = read_settings(Path(path), names)
    ctx.default_map = dict(found.server)
    return found


def _in_file(option: click.Parameter) -> bool:
    return isinstance(option, click.Option) and option.name not in (
        "config", "languages", "split_sentences", "help", *_DECODING,
    )  # fmt: skip


@click.command(
    short_help="Translate over HTTP. Needs no torch.",
    context_settings={"auto_envvar_prefix": PREFIX},
)
@click.argument("bundles", nargs=-1, type=click.Path(), metavar="BUNDLE...",
                envvar=f"{PREFIX}_BUNDLES")  # fmt: skip
@click.option("--config", type=click.Path(), metavar="FILE", is_eager=True, callback=_read_config,
              help="Read bundles and settings from FILE, which is TOML.")  # fmt: skip
@click.option("--host", default="127.0.0.1", show_default=True,
              help="Address to listen on; 0.0.0.0 for all interfaces.")  # fmt: skip
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True,
              help="Port to listen on; 0 for any free one.")  # fmt: skip
@click.option("--uds", type=click.Path(), metavar="PATH",
              help="Listen on a Unix domain socket at PATH instead.")  # fmt: skip
@click.option("--threads", type=click.IntRange(0, MOST_THREADS), default=0, show_default=True,
              help="Threads of each model; 0 for all available cores.")  # fmt: skip
@engine_option
@click.option("--slots", type=click.IntRange(1, 4096), default=32, show_default=True,
              help="Maximum number of rows that a model decodes at the same time.")  # fmt: skip
@click.option("--max-queue", type=click.IntRange(1, 1_000_000), default=256, show_default=True,
              help="Maximum number of waiting requests per model; more get a 503.")  # fmt: skip
@click.option("--timeout", type=float, default=60.0, show_default=True,
              help="Seconds from a request's arrival to its answer.")  # fmt: skip
@click.option("--max-texts", type=click.IntRange(1, 1_000_000), default=256, show_default=True,
              help="Maximum number of texts in a request.")  # fmt: skip
@click.option("--max-characters", type=click.IntRange(1, 100_000_000), default=100_000,
              show_default=True, help="Maximum number of characters in a request.")  # fmt: skip
@click.option("--max-tokens", type=click.IntRange(1, 1_000_000), default=1024, show_default=True,
              help="Maximum number of tokens in a sentence's translation. The model's own limit "
              "applies too.")  # fmt: skip
@click.option("--max-file-bytes", type=click.IntRange(1, 1 << 30), default=16 << 20,
              show_default=True, help="Maximum number of bytes of all files in a request, for "
              "models that take files.")  # fmt: skip
@click.option("--max-pixels", type=click.IntRange(1, 1 << 31), default=25_000_000,
              show_default=True, help="Maximum number of pixels of a picture.")  # fmt: skip
@click.option("--max-seconds", type=float, default=1800.0, show_default=True,
              help="Maximum length of a sound to transcribe.")  # fmt: skip
@click.option("--max-connections", type=click.IntRange(1, 1 << 20), default=16_384,
              show_default=True, help="Maximum number of open connections, or the system's limit "
              "of open files if that is lower; others wait to be accepted.")  # fmt: skip
@click.option("--api-key-file", type=click.Path(), metavar="FILE",
              help="Accept only requests with a key from FILE, one key per line.")  # fmt: skip
@click.option("--glossaries", type=click.Path(), metavar="FOLDER",
              help="Let callers store glossaries in FOLDER, by DeepL's protocol. Several servers "
              "may share it.")  # fmt: skip
@click.option("--languages", multiple=True, metavar="NAME=de-en", help="Languages of a model, "
              "if its bundle and name do not contain them, or to restrict the ones it serves; "
              "several as de,fr-en. Repeatable.")  # fmt: skip
@click.option("--split-sentences", multiple=True, metavar="NAME=none",
              help="How a model's texts are split into sentences: lines, punctuation or none. The "
              "default depends on the bundle. Repeatable.")  # fmt: skip
@click.option("--cors-origin", "cors_origins", multiple=True, metavar="ORIGIN",
              help="Allow requests from pages of an origin such as https://example.org, or '*' for "
              "all. Repeatable.")  # fmt: skip
@click.option("--allowed-host", "allowed_hosts", multiple=True, metavar="NAME",
              help="Accept this name in the Host header too, or '*' for any, while the server "
              "listens on a loopback address. Repeatable.")  # fmt: skip
@click.option("--log-level", type=click.Choice(["info", "warning", "error"]), default="info",
              show_default=True, help="Minimum level of the log: info for every request, warning "
              "for requests without a result, error for faults of the server.")  # fmt: skip
@click.option("--json", is_flag=True,
              help="Print the lines about the start as JSON, like those of the log.")  # fmt: skip
@decoding_options(_DECODING)
@click.pass_context
def serve(
    ctx: click.Context, /, bundles: tuple[str, ...], config: "SettingsFile | None",
    languages: tuple[str, ...], split_sentences: tuple[str, ...], json: bool, **values: Any,
) -> None:  # fmt: skip
    """Serve BUNDLEs over HTTP, each as a model named as its folder, without '.bundle'.

    The server has its own JSON protocol, and those of LibreTranslate, DeepL, KServe and, for
    sound, OpenAI, so that their clients work with it. SIGTERM stops it after all requests are
    answered. SIGHUP reloads bundles that were replaced. Decoding options are defaults: a request
    can set its own. Every option can also be an environment variable (TFEXPORT_SERVE_PORT for
    --port) or a setting in the file of --config.

    \b
    tfexport serve de-en.bundle
    tfexport serve de-en.bundle fr-en.bundle --host 0.0.0.0 --api-key-file keys.txt
    tfexport serve de-en.bundle --beam-size 4 --max-length 200
    tfexport serve --config serve.toml
    """
    from tfexport.serve import (
        Service,
        Settings,
        bind,
        bind_path,
        inherited,
        model_name,
        request_log,
        run,
        url_of,
    )

    served = bundles or (config.bundles if config is not None else ())
    if not served:
        raise click.UsageError("Missing argument 'BUNDLE...', or bundles in the file of --config.")
    names = [model_name(bundle) for bundle in served]
    host, port, uds = (values.pop(name) for name in ("host", "port", "uds"))
    request_log.keep(values.pop("log_level"))
    decoding = given({name: values.pop(name) for name in _DECODING})
    key_file, glossaries = (values.pop(name) for name in ("api_key_file", "glossaries"))
    settings = Settings(
        models=_models(config, names, languages, split_sentences),
        decoding=decoding,
        key_file=None if key_file is None else Path(key_file),
        glossaries=None if glossaries is None else Path(glossaries),
        **values,
    )
    bound = inherited() or (bind(host, port) if uds is None else bind_path(Path(uds)))
    with bound:
        service = Service(served, settings)
        for model in service.models:
            for line in model.described():
                _say(line.spelled(spell), json, event="model", model=model.name)
        text = f"Serving {', '.join(service.models.names)} at {url_of(bound)}"
        fields = {"event": "serving", "url": url_of(bound), "models": service.models.names}
        if run(service, bound, lambda: _say(text, json, **fields)):
            ctx.exit(INTERRUPTED)


def _say(text: str, as_json: bool, **values: Any) -> None:
    """Print a line about the start, as text or as a line of the log."""
    from tfexport.serve import request_log

    if as_json:
        request_log.write(**values, message=text)
    else:
        request_log.say(text)


def _models(
    config: "SettingsFile | None", names: list[str], languages: tuple[str, ...],
    split: tuple[str, ...],
) -> "Mapping[str, ModelSettings]":  # fmt: skip
    from tfexport.serve import ModelSettings

    models = {} if config is None else config.settings_of(names)
    for option, several, form in (
        ("languages", languages, "de-en"),
        ("split_sentences", split, "none"),
    ):
        for name, value in _named(option, several, form):
            own: dict[str, Any] = {option: value}
            models[name] = replace(models.get(name, ModelSettings()), **own)
    return models


def _named(option: str, several: tuple[str, ...], form: str) -> Iterator[tuple[str, str]]:
    for text in several:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise ConfigError(Message(Option(option), f": {text!r} is not NAME={form}"))
        yield name, value
