"""The thread layouts that ``bench --tune`` saves in the user's settings, one per bundle."""

import hashlib
import json
import os
from pathlib import Path

import click

from tfexport.atomic import new_file
from tfexport.bundle import MANIFEST
from tfexport.errors import ConfigError
from tfexport.runtime.parallel.cpu import ThreadLayout

VARIABLE = "TFEXPORT_TUNING"  # the path of another file


def tuning_file() -> Path:
    """The file in which layouts are saved."""
    named = os.environ.get(VARIABLE)
    return Path(named) if named else Path(click.get_app_dir("tfexport")) / "tuning.json"


def read_layout(bundle: Path) -> ThreadLayout | None:
    """The layout that was saved for this bundle on this machine; None if there is none.

    A damaged file is ignored, since a layout only affects speed.
    """
    key = _key(bundle)
    if key is None:
        return None
    found = _read().get(key)
    if not isinstance(found, dict):
        return None
    values = [found.get("workers"), found.get("threads")]
    if not all(type(value) is int and 1 <= value <= (os.cpu_count() or 1) for value in values):
        return None
    try:
        return ThreadLayout(found["workers"], found["threads"])
    except ConfigError:  # more threads than allowed
        return None


def write_layout(bundle: Path, layout: ThreadLayout) -> Path:
    """Save a layout and return the path of the file."""
    key = _key(bundle)
    assert key is not None, "a bundle that was measured has a manifest"
    path = tuning_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    entries = {**_read(), key: {"workers": layout.workers, "threads": layout.threads}}
    with new_file(path, force=True) as partial:
        partial.write_text(json.dumps(entries, indent=2) + "\n", encoding="utf-8")
    return path


def machine() -> str:
    """A name for this machine: the number of usable cores, and the processor."""
    from tfexport.runtime.parallel.cpu import processor, usable_cores

    return f"{usable_cores()} x {processor()}"


def _key(bundle: Path) -> str | None:
    """The key of a layout: a hash of the bundle's manifest, and the machine."""
    try:
        digest = hashlib.sha256((bundle / MANIFEST).read_bytes()).hexdigest()
    except OSError:
        return None
    return f"{digest[:32]} on {machine()}"


def _read() -> dict[str, object]:
    try:
        entries = json.loads(tuning_file().read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return entries if isinstance(entries, dict) else {}
