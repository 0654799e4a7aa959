"""The command group, which turns errors into messages and exit codes."""

import atexit
import errno
import gc
import io
import os
import signal
import sys
from importlib import import_module
from types import FrameType
from typing import Any

import click

from tfexport.atomic import naming
from tfexport.cli import INTERRUPTED
from tfexport.cli.console import spell
from tfexport.errors import ConfigError, TfexportError, nearest_name, system_reason
from tfexport.runtime.parallel import SWITCH_INTERVAL


def print_version(ctx: click.Context, option: click.Parameter, asked: bool) -> None:
    """A callback of click: print the versions and end."""
    if not asked or ctx.resilient_parsing:
        return
    import tfexport
    from tfexport.runtime.benchmark import onnxruntime_version
    from tfexport.runtime.model import native_engine
    from tfexport.runtime.parallel.cpu import instruction_set

    click.echo(f"tfexport, version {tfexport.__version__}")
    click.echo(f"onnxruntime {onnxruntime_version()}, {instruction_set()}")
    click.echo(native_engine.describe())
    ctx.exit()


# In the order of use, not of the alphabet. Each is a function of its own file.
_COMMANDS = (
    "onnx", "torchscript", "verify", "translate", "transcribe", "corpus", "serve", "score",
    "quantize", "optimize", "bench", "inspect", "demo",
)  # fmt: skip
CLOSED_PIPE = 141
TERMINATED = 143
_OF_GPUS = ("--device", "--gpu", "--cuda", "--gpus", "--fp16", "--half")
# What is said of options that no command, or only another one has.
_ELSEWHERE = {
    **dict.fromkeys(_OF_GPUS, "models are decoded on the CPU; GPUs are not supported."),
    "--terms": "only tfexport translate and the protocols of tfexport serve take terms.",
}


class _Group(click.Group):
    """Exit codes: 0 done, 1 failed, 2 wrong usage or options, else 128 and a signal's number."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with naming("stdout"):  # errors of other outputs name their file already
                return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("Interrupted.", err=True)
            ctx.exit(INTERRUPTED)
        except ConfigError as error:
            raise click.UsageError(error.message.spelled(spell), ctx=None) from error
        except click.NoSuchOption as error:
            if error.option_name not in _ELSEWHERE:
                raise
            text = _ELSEWHERE[error.option_name]
            text = f"No such option {error.option_name!r}: {text}"
            raise click.UsageError(text, error.ctx) from error
        except click.BadParameter as error:
            raise _in_plain_words(error) from error
        except TfexportError as error:
            raise click.ClickException(error.message.spelled(spell)) from error
        except BrokenPipeError:
            # The reader of a pipe has ended, such as `head`: exit without a message, as on SIGPIPE.
            # Python would flush stdout at exit, and print an error.
            sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115
            ctx.exit(CLOSED_PIPE)
        except OSError as error:
            raise click.ClickException(system_reason(error)) from error

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in _COMMANDS and not args[0].startswith("-"):
            near = nearest_name(args[0], _COMMANDS)
            if near is not None:
                ctx.fail(f"No such command {args[0]!r}. Did you mean {near!r}?")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        # One command does not wait for what the others import.
        command: click.Command = getattr(import_module(f"tfexport.cli.{name}_command"), name)
        return command


def _in_plain_words(error: click.BadParameter) -> click.BadParameter:
    """Rewrite click's "not a valid integer range" and "not a valid float"."""
    if error.param is None or type(error) is not click.BadParameter:
        return error
    kind, text = error.param.type, error.message.replace("a valid float", "a number")
    if isinstance(kind, click.IntRange):
        bounds = f"an integer from {kind.min} to {kind.max}"
        text = text.replace("a valid integer range", bounds)
    return click.BadParameter(text, error.ctx, error.param, error.param_hint)


@click.group(
    cls=_Group,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start with: tfexport onnx --checkpoint model.pt -o model.bundle",
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=print_version,
              help="Print the version, onnxruntime's, and what the processor has.")  # fmt: skip
def cli() -> None:
    """Take a trained encoder-decoder Transformer from PyTorch to files that decode without torch.

    Results go to stdout, progress and messages to stderr. Exit status: 0 done, 1 failed,
    2 wrong usage or options, 130 interrupted, 141 if no one reads stdout any more.
    """


def main() -> None:
    """Run the command line, and end the process."""
    signal.signal(signal.SIGTERM, _terminate)
    # Without this, the garbage collection at exit takes 2 s after an export.
    atexit.register(gc.freeze)
    sys.setswitchinterval(SWITCH_INTERVAL)
    _replace_closed_streams()
    write_utf8()
    try:
        cli()
    except OSError as error:  # for what click itself writes, such as the help
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115
        click.echo(f"Error: stdout: {error.strerror or error}", err=True)
        sys.exit(1)


def write_utf8() -> None:
    """Make stdout and stderr write UTF-8 in every locale."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="replace")


class _Closed(io.RawIOBase):
    """A replacement for a standard stream that was closed before the process started."""

    def __init__(self, name: str) -> None:
        self.name = name

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        raise OSError(errno.EBADF, "is closed", self.name)

    def write(self, data: object) -> int:
        raise OSError(errno.EBADF, "is closed", self.name)


def _replace_closed_streams() -> None:
    """Make reads of a closed stdin and writes to a closed stdout raise errors that name them."""
    for name, flags in (("stdin", os.O_WRONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY)):
        if getattr(sys, name) is not None:
            continue
        # Otherwise the next opened file gets this descriptor, and libraries would write into it.
        descriptor = os.open(os.devnull, flags)
        if name == "stdin":
            sys.stdin = io.TextIOWrapper(io.BufferedReader(_Closed(name)))
        elif name == "stdout":
            sys.stdout = io.TextIOWrapper(_Closed(name), write_through=True)
        else:
            sys.stderr = open(descriptor, "w")  # noqa: PTH123, SIM115


def _terminate(signum: int, frame: FrameType | None) -> None:
    # Raised as an exception, so that partial output is removed.
    sys.exit(TERMINATED)
