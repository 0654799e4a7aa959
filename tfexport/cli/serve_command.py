"""``tfexport serve``."""

from pathlib import Path

import click

from tfexport.cli.decoding_options import engine_option
from tfexport.errors import ConfigError
from tfexport.runtime.parallel.thread_layout import MOST_THREADS

INTERRUPTED = 130


@click.command(short_help="Translate over HTTP. Needs no torch.")
@click.argument("bundles", nargs=-1, required=True, type=click.Path(), metavar="BUNDLE...")
@click.option("--host", default="127.0.0.1", show_default=True,
              help="Address to listen on; 0.0.0.0 is every network.")  # fmt: skip
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True,
              help="Port to listen on; 0 takes a free one.")  # fmt: skip
@click.option("--threads", type=click.IntRange(0, MOST_THREADS), default=0, show_default=True,
              help="Threads of each model; 0 takes all cores that it is allowed.")  # fmt: skip
@engine_option
@click.option("--slots", type=click.IntRange(1, 4096), default=32, show_default=True,
              help="Rows of a model that are decoded at a time.")  # fmt: skip
@click.option("--max-queue", type=click.IntRange(1, 1_000_000), default=256, show_default=True,
              help="Requests of a model that may wait; more are answered 503.")  # fmt: skip
@click.option("--timeout", type=float, default=60.0, show_default=True,
              help="Seconds from a request's arrival to its answer.")  # fmt: skip
@click.option("--max-texts", type=click.IntRange(1, 1_000_000), default=256, show_default=True,
              help="Most texts of a request.")  # fmt: skip
@click.option("--max-characters", type=click.IntRange(1, 100_000_000), default=100_000,
              show_default=True, help="Most characters of all texts of a request.")  # fmt: skip
@click.option("--max-tokens", type=click.IntRange(1, 1_000_000), default=1024, show_default=True,
              help="Most tokens of a sentence's translation; what the model has no room for, it "
              "does not write anyway.")  # fmt: skip
@click.option("--api-key-file", type=click.Path(), metavar="FILE",
              help="Serve only those who give a key of FILE, which has one a line.")  # fmt: skip
@click.option("--languages", multiple=True, metavar="NAME=de-en", help="Languages of a model "
              "whose bundle and name do not say them. Repeatable.")  # fmt: skip
@click.option("--cors-origin", "cors_origins", multiple=True, metavar="ORIGIN",
              help="Let pages of an origin such as https://example.org, or '*' for all, call the "
              "server. Repeatable.")  # fmt: skip
@click.option("--allowed-host", "allowed_hosts", multiple=True, metavar="NAME",
              help="Answer to this name too, or '*' for any, though the server listens to this "
              "machine alone. Repeatable.")  # fmt: skip
@click.pass_context
def serve(
    ctx: click.Context, /, bundles: tuple[str, ...], host: str, port: int,
    languages: tuple[str, ...], api_key_file: str | None, **values: object,
) -> None:  # fmt: skip
    """Serve BUNDLEs over HTTP, each as a model named as its folder, without '.bundle'.

    The server speaks JSON of its own, and the protocols of LibreTranslate, DeepL and KServe, so
    that their clients work with it. SIGTERM ends it when all requests are answered; SIGHUP opens
    bundles again that were replaced.

    \b
    tfexport serve de-en.bundle
    tfexport serve de-en.bundle fr-en.bundle --host 0.0.0.0 --api-key-file keys.txt
    """
    from tfexport.serve import Service, Settings, bind, run, url_of

    settings = Settings(
        languages=_pairs(languages),
        key_file=None if api_key_file is None else Path(api_key_file),
        **values,  # type: ignore[arg-type]
    )
    with bind(host, port) as bound:
        service = Service(bundles, settings)
        for model in service.models:
            reason = model.scheduler.reason
            batching = f"dynamic batching: {reason}" if reason else "continuous batching"
            click.echo(f"{model.name}: {batching}, {model.engine.model.engine}", err=True)
        text = f"Serving {', '.join(service.models.names)} at {url_of(bound)}"
        if run(service, bound, lambda: click.echo(text, err=True)):
            ctx.exit(INTERRUPTED)


def _pairs(given: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for text in given:
        name, sign, pair = text.partition("=")
        if not sign or not name:
            raise ConfigError(f"--languages: {text!r} is not NAME=de-en")
        pairs[name] = pair
    return pairs
