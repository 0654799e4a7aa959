"""Releases of the packages that are measured."""

import subprocess
from importlib.metadata import PackageNotFoundError, version

from benchmarks.configurations import OPTIMUM_PYTHON

PACKAGES = ("torch", "onnxruntime", "ctranslate2", "transformers")
OPTIMUM = ("optimum-onnx", "transformers", "onnxruntime")
ASK = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"


def versions() -> dict[str, str]:
    """Release by package, without those that are not installed."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    if OPTIMUM_PYTHON.exists():
        command = [str(OPTIMUM_PYTHON), "-c", ASK, *OPTIMUM]
        answer = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        for package, release in zip(OPTIMUM, answer.split(), strict=False):
            found[package if package in OPTIMUM[:1] else f"{package} of Optimum"] = release
    return found
