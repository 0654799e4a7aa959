"""One server of the tiny bundle for all tests that do not need one of their own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serve.servers import Server, serving
from tfexport.runtime import Translator


@pytest.fixture(scope="session")
def server(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Of the model "tiny", from German to English. Do not change it."""
    folder = tmp_path_factory.mktemp("server")
    with serving(folder, tiny_bundle, "--languages", "tiny=de-en") as running:
        yield running


@pytest.fixture(scope="session")
def translator(tiny_bundle: Path) -> Translator:
    return Translator(tiny_bundle, threads=1)
