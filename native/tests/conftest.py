"""Options of the engine's tests."""

import ctypes
import importlib.util

import pytest

if importlib.util.find_spec("tfexport_native") is None:
    # `make optional` installs it where there is a compiler.
    collect_ignore_glob = ["test_*.py"]
else:
    import torch

    # Workers of pytest-xdist share the cores; torch's threads would wait for one another, spinning.
    torch.set_num_threads(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--configs", type=int, default=25, help="configs that are drawn")
    parser.addoption("--sanitizers", action="store_true", help="build with them, too")
    parser.addoption("--batches", type=int, default=200, help="batches that are drawn")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--sanitizers") and not hasattr(ctypes.CDLL(None), "__asan_init"):
        raise pytest.UsageError("AddressSanitizer is not in this process: see `make sanitize`")
