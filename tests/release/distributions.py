"""The wheel and the source distribution, and what may be in them."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from tests.support.paths import REPOSITORY

# Of the package itself, besides code.
DATA = (
    "tfexport/py.typed", "tfexport/export/quantization/sounds.npz",
    "tfexport/model_src/checkpoint/unsupported.json", "tfexport/serve/page/",
)  # fmt: skip


def build(folder: Path, python: Path | str = sys.executable) -> tuple[Path, Path]:
    """Build both, in an environment of the build's own; the wheel is made of the sdist.

    Args:
        folder: where they go.
        python: that has ``build``.

    Returns:
        The wheel and the source distribution.
    """
    subprocess.run(
        [python, "-m", "build", "--outdir", folder, REPOSITORY], check=True, capture_output=True
    )
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def contents(wheel: Path) -> list[str]:
    """Names of the files in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def problems_of_wheel(wheel: Path) -> list[str]:
    """What does not belong into a wheel, or is missing."""
    names = set(contents(wheel))
    written = {
        path.relative_to(REPOSITORY).as_posix()
        for path in (REPOSITORY / "tfexport").rglob("*")
        if path.suffix == ".py" or path.relative_to(REPOSITORY).as_posix().startswith(DATA)
        if path.is_file()
    }
    inside = {name for name in names if ".dist-info/" not in name}
    found = [f"{name}: is missing" for name in sorted(written - inside)]
    found += [f"{name}: does not belong" for name in sorted(inside - written)]
    if not any(name.endswith(".dist-info/licenses/LICENSE") for name in names):
        found.append("LICENSE: is missing")
    return found


def problems_of_sdist(sdist: Path) -> list[str]:
    """What is missing in a source distribution, or was made by building."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "tests/conftest.py"}
    made = ("build/", ".venv", "dist/")
    found = [f"{name}: is missing" for name in sorted(wanted - names)]
    return found + [f"{name}: does not belong" for name in sorted(names) if name.startswith(made)]
