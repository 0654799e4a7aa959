"""The programs in examples/, run as a reader would run them."""

import re
import subprocess
import sys

import pytest

from tests.support.paths import REPOSITORY


@pytest.mark.slow
@pytest.mark.exhaustive
def test_train_and_ship_learns_and_decodes_without_torch() -> None:
    done = subprocess.run(
        [sys.executable, REPOSITORY / "examples" / "train_and_ship.py", "annotated"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = re.search(r"(\d+) of 200 rows right without torch", done.stdout)
    assert found is not None, done.stdout
    assert int(found.group(1)) > 150
