"""The command line, called in this process or in one of its own."""

import subprocess
import sys

import click
from click.testing import CliRunner, Result

from tests.conftest import SETTINGS
from tfexport.cli.main import cli

IDS = [f"--set={key}={value}" for key, value in SETTINGS.items()]


def _commands() -> dict[str, click.Command]:
    with click.Context(cli) as context:
        found = {name: cli.get_command(context, name) for name in cli.list_commands(context)}
    return {name: command for name, command in found.items() if command is not None}


COMMANDS = _commands()


def invoke(*args: object, stdin: str | bytes = b"") -> Result:
    data = stdin.encode() if isinstance(stdin, str) else stdin
    return CliRunner().invoke(cli, [str(arg) for arg in args], input=data)


def run(*args: object, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "tfexport", *map(str, args)]
    return subprocess.run(command, input=stdin, capture_output=True)
