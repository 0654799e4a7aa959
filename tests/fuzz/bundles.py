"""Copies of bundles for cases to change and use, and calls of the command line."""

import contextlib
import functools
import importlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from click.testing import CliRunner

from tests.fuzz.mutate import dumps
from tests.support.paths import VERSION_1
from tfexport.bundle import MANIFEST
from tfexport.cli.main import cli, write_utf8
from tfexport.manifest import digest_of
from tfexport.runtime import Translator


def copy_bundle(rng: Random, bundle: Path, scratch: Path) -> Path:
    """A copy of one of two bundles: the one of the tests, and the stored one."""
    folder = scratch / "a.bundle"
    folder.mkdir()
    for path in sorted(rng.choice([bundle, VERSION_1]).iterdir()):
        shutil.copyfile(path, folder / path.name)
    return folder


def rewrite(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change a manifest and compute its digest again, if it can have one."""
    path = folder / MANIFEST
    values = change(json.loads(path.read_text(encoding="utf-8")))
    if isinstance(values, dict):
        try:
            values["digest"] = digest_of(values)
        except (ValueError, RecursionError, TypeError):
            values["digest"] = "sha256:none"
    path.write_text(dumps(values), encoding="utf-8")


def use(rng: Random, folder: Path) -> None:
    """Open a bundle and decode with it: text, ids, and one drawn kind of search or scoring."""
    translator = Translator(folder, threads=1)
    rows = [[4, 5, 2], [6, 2]]
    translator.generate(rows, max_length=4)
    kind = rng.randrange(6)
    if kind == 0:
        translator.generate(rows, beam_size=2, max_length=4)
    elif kind == 1:
        translator.generate(rows, return_token_scores=True, max_length=4)
    elif kind == 2:
        translator.generate(
            rows, beam_size=2, no_repeat_ngram_size=2, disable_unk=True, max_length=4
        )
    elif kind == 3:
        translator.score([[4, 5, 2]], [[5, 6]])
    elif kind == 4:
        list(translator.stream("w4 w5", max_length=4))
    translator.translate(["w4 w5", "w6 nope"], max_length=4)


def warm_up(bundle: Path) -> None:
    """Do once what cases do, so that their time does not include imports."""
    use(Random(0), bundle)
    command("inspect", bundle)
    # What commands import when they look into a file that is no bundle.
    importlib.import_module("tfexport.model_src.checkpoint.read")
    command("inspect", bundle / MANIFEST)


class _Runner(CliRunner):
    """With streams as the ``tfexport`` script sets them up."""

    @contextlib.contextmanager
    def isolation(self, *args: Any, **options: Any) -> Iterator[Any]:
        with super().isolation(*args, **options) as streams:
            write_utf8()
            yield streams


def command(*words: object, stdin: bytes = b"") -> int:
    """Run the command in this process; its exit code.

    Raises:
        Exception: any that the command line does not turn into a message.
    """
    done = _Runner().invoke(cli, [str(word) for word in words], input=stdin)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code


@functools.cache
def translator_of(bundle: Path) -> Translator:
    """A translator for the cases of one process; what a case leaves in it is part of the test."""
    return Translator(bundle, threads=1)
