"""Limits of the code: parameters, imports, flags, docstrings. The rules are in support/house.

Each rule has a list of places that break it still. A place that is not listed fails the test, and
so does one that is listed and breaks the rule no longer: the lists can only become shorter.
"""

import pytest

from tests.support import house
from tests.support.house import Rule, broken, import_circles, read_sources
from tests.support.paths import REPOSITORY

STILL: dict[Rule, set[str]] = {
    house.long_signatures: {
        # torch's own signature, which it is there to have
        "tfexport/model_src/original_signatures.py:TorchTransformer.__init__",
        # one keyword for each option of the command, which an editor completes
        "tfexport/corpus/dataset.py:translate_dataset",
        "tfexport/corpus/run.py:translate_corpus",
    },
    house.hidden_imports: {
        # onnxruntime takes long to import, and is not needed where the native engine runs
        "tfexport/runtime/model/open_model.py:open_model",
        # so does Ray, which threads do not need
        "tfexport/corpus/run.py:translate_corpus",
        # it reads parts of torch that other exports do without
        "tfexport/export/graphs/exporter.py:_exportable_layers",
    },
    house.imports_for_types_only: set(),
    house.flags: set(),
    house.modules_without_docstring: set(),
}
CIRCLES: list[set[str]] = []


@pytest.mark.parametrize("rule", STILL, ids=lambda rule: rule.__name__)
def test_the_limit_is_kept(rule: Rule) -> None:
    compare(broken(rule, read_sources(REPOSITORY)), STILL[rule])


def compare(found: set[str], listed: set[str]) -> None:
    assert sorted(found - listed) == [], "to be mended"
    assert sorted(listed - found) == [], "mended: to be taken off the list"


def test_no_modules_import_each_other() -> None:
    assert import_circles(read_sources(REPOSITORY)) == CIRCLES


def test_every_folder_with_modules_is_a_package() -> None:
    for path in (REPOSITORY / "tfexport").rglob("*.py"):
        assert path.with_name("__init__.py").exists(), path
