"""Environments that have tfexport in the ways in which users have it.

    python -m tests.support.installs FOLDER

makes one with a wheel of this tree, and what it needs from the environment that this runs in.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

from tests.support.paths import REPOSITORY

SOURCES = ("pyproject.toml", "README.md", "LICENSE", "tfexport")
DEPENDENCIES = Path(sysconfig.get_path("purelib"))
_NOT_LINKED = ("tfexport", "__editable__", "__pycache__")
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")


def copy_sources(folder: Path) -> None:
    """Copy what tfexport is built of."""
    folder.mkdir()
    for name in SOURCES:
        if (REPOSITORY / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(REPOSITORY / name, folder / name, ignore=ignored)
        else:
            shutil.copy(REPOSITORY / name, folder)


def build_wheel(folder: Path) -> None:
    """Build a wheel into a folder, of a copy: another build may take place in the repository.

    Raises:
        CalledProcessError: it cannot be built, as without the index that has what builds it.
    """
    with tempfile.TemporaryDirectory() as place:
        sources = Path(place) / "sources"
        copy_sources(sources)
        command = (*PIP, "wheel", "--no-deps", "--wheel-dir", folder, sources)
        subprocess.run(command, check=True, capture_output=True, text=True)


class Install:
    """A virtual environment.

    Args:
        folder: of the environment.
        paths: further folders that its Python searches, after its own.
        link: have the dependencies in its own folder of packages.
    """

    def __init__(self, folder: Path, *paths: Path, link: bool = False) -> None:
        venv.create(folder, symlinks=True, with_pip=False)
        named = {"base": str(folder), "platbase": str(folder)}
        # Debian's Python has another scheme by default, whose folder is not that of environments.
        scheme = "venv" if "venv" in sysconfig.get_scheme_names() else "posix_prefix"
        self.packages = Path(sysconfig.get_path("purelib", scheme, named))
        self.python = Path(sysconfig.get_path("scripts", scheme, named)) / "python"
        if link:
            for each in DEPENDENCIES.iterdir():
                if not each.name.startswith(_NOT_LINKED) and each.suffix != ".pth":
                    (self.packages / each.name).symlink_to(each)
        if paths:
            text = "".join(f"{path}\n" for path in paths)
            (self.packages / "paths.pth").write_text(text, encoding="utf-8")

    def install(self, *what: object) -> None:
        """Install by pip, without dependencies.

        Raises:
            CalledProcessError: it cannot be installed.
        """
        command = (*PIP, "--python", self.python, "install", "--no-deps", "--no-compile", *what)
        subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True)

    def run(self, *command: object, folder: Path, **variables: str) -> str:
        """What a Python prints that has nothing of this one's environment."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        done = subprocess.run(
            [str(self.python), *map(str, command)], cwd=folder, env={**kept, **variables},
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def main(folder: str) -> None:
    """Make the environment of ``make test-wheel``."""
    place = Path(folder)
    shutil.rmtree(place, ignore_errors=True)
    install = Install(place, DEPENDENCIES)
    with tempfile.TemporaryDirectory() as wheels:
        build_wheel(Path(wheels))
        install.install(*Path(wheels).glob("*.whl"))


if __name__ == "__main__":
    main(*sys.argv[1:])
