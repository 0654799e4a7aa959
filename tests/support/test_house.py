"""Every rule finds what breaks it, and nothing else."""

import pytest

from tests.support.house import (
    Rule,
    Source,
    flags,
    hidden_imports,
    import_circles,
    imports_for_types_only,
    long_signatures,
    modules_without_docstring,
)

_NINE = "a, b, c, d, e, f, g, h, i"


@pytest.mark.parametrize(
    ("rule", "path", "text", "names"),
    [
        (long_signatures, "tfexport/cli/a.py", f"def b({_NINE}): ...", {"b"}),
        (long_signatures, "tfexport/a.py", f"def b(*, {_NINE}): ...", {"b"}),
        (long_signatures, "tfexport/a.py", f"def b(self, {_NINE[3:]}, *z, **y): ...", set()),
        (hidden_imports, "tfexport/a.py", "def b():\n  from tfexport import c", {"b"}),
        (hidden_imports, "tfexport/a.py", "def b():\n  if x:\n    import tfexport.c", {"b"}),
        (hidden_imports, "tfexport/a.py", "def b():\n  import torch", set()),
        (hidden_imports, "tfexport/a.py", "def __getattr__():\n  import tfexport.c", set()),
        (hidden_imports, "tfexport/cli/a.py", "def b():\n  import tfexport.c", set()),
        (imports_for_types_only, "tfexport/runtime/a.py",
         "if TYPE_CHECKING:\n  from tfexport import c", {""}),
        (imports_for_types_only, "tfexport/runtime/a.py",
         "if TYPE_CHECKING:\n  from torch import c", set()),
        (imports_for_types_only, "tfexport/runtime/__init__.py",
         "if TYPE_CHECKING:\n  from tfexport import c\ndef __getattr__(name): ...", set()),
        (imports_for_types_only, "tfexport/runtime/__init__.py",
         "if TYPE_CHECKING:\n  from tfexport import c", {""}),
        (imports_for_types_only, "tfexport/runtime/a.py",
         "if TYPE_CHECKING:\n  from tfexport import c\ndef __getattr__(name): ...", {""}),
        (imports_for_types_only, "tfexport/cli/a.py",
         "if TYPE_CHECKING:\n  from tfexport import c", set()),
        (flags, "tfexport/a.py", "def b():\n  raise E(f'{c}: pass --force')", {"b"}),
        (flags, "tfexport/a.py", "def b():\n  '''As --force.'''\n  return 'a--b -- --'", set()),
        (flags, "tfexport/cli/a.py", "x = '--force'", set()),
        (modules_without_docstring, "tfexport/__init__.py", "", {""}),
        (modules_without_docstring, "tfexport/__init__.py", "'''A package.'''", set()),
    ],
)  # fmt: skip
def test_the_rule_finds_what_breaks_it(rule: Rule, path: str, text: str, names: set[str]) -> None:
    assert set(rule(Source(path, text))) == names


def test_circles_are_found_wherever_imports_stand() -> None:
    texts = {
        "a/__init__.py": "",
        "a/b.py": "from a.c import x",
        "a/c.py": "def f():\n  from a import d",
        "a/d.py": "if TYPE_CHECKING:\n  import a.b",
        "a/e.py": "import os, a.b",
        "a/f.py": "from a import f",
    }
    sources = [Source(path, text) for path, text in texts.items()]
    assert import_circles(sources) == [{"a.b", "a.c", "a.d"}, {"a.f"}]
