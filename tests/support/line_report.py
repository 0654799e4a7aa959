"""Exports the classes of modules, and writes what messages say about their lines, as JSON.

    python line_report.py REPORT MODULE... cell:NAME:FILE... ipython::FILE...

A module is imported by its name, and ``__main__`` is the script that calls ``main``. Code of a cell
is compiled as IPython does, under a name, with its source in Python's cache of lines, or by IPython
itself.
"""

import importlib
import json
import linecache
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch

import tfexport
from tfexport.errors import ExportError
from tfexport.export import Input, export, forms
from tfexport.graph_io import BEAM, GENERATE

GIVEN: dict[str, Any] = {
    "inputs": [Input("input_ids", "int64", ("batch", "source_length"))],
    "pad_id": 0, "bos_id": 1, "eos_id": 2, "max_length": 8, "verify": False,
}  # fmt: skip
REFUSED = ("Sized", "Branching")


def run_cell(name: str, text: str) -> dict[str, Any]:
    """The names of a cell of a notebook."""
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, name, "exec"), names)
    return names


def run_ipython(text: str) -> dict[str, Any]:
    """The names of a cell of a notebook, of IPython's own."""
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    shell.run_cell(text).raise_error()
    names: dict[str, Any] = shell.user_ns
    return names


def names_of(what: str) -> dict[str, Any]:
    kind, _, cell = what.partition(":")
    if cell:
        name, _, file = cell.partition(":")
        text = Path(file).read_text(encoding="utf-8")
        return run_cell(name, text) if kind == "cell" else run_ipython(text)
    return vars(importlib.import_module(what))


def said_about(names: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Notes, what was found, and refusals."""
    torch.manual_seed(0)
    made = export(names["Small"](), folder / "small.bundle", **GIVEN, force=True)
    module: Any = made.bundle_manifest.module if made.bundle_manifest is not None else None
    refusals = {}
    for name in REFUSED:
        try:
            export(names[name](), folder / "refused.bundle", **GIVEN)
        except ExportError as error:
            refusals[name] = str(error)
    return {
        "file": names["Small"].forward.__code__.co_filename,
        "notes": list(made.notes),
        "found": module["found"],
        "refusals": refusals,
    }


def main(report: str, *modules: str) -> None:
    """Write a report about modules."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    # The others are enough.
    forms.FORMS = tuple(form for form in forms.FORMS if form.name not in (GENERATE, BEAM))
    with tempfile.TemporaryDirectory() as folder:
        said = {name: said_about(names_of(name), Path(folder)) for name in modules}
    said["places"] = {"tfexport": tfexport.__file__, "torch": torch.__file__}
    Path(report).write_text(json.dumps(said), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
