"""Copies of bundles as other programs make them: of links."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path


def hard(bundle: Path, folder: Path) -> Path:
    """As ``cp -al`` and installers do."""
    original = shutil.copytree(bundle, folder / "original.bundle")
    return Path(shutil.copytree(original, folder / "copy.bundle", copy_function=os.link))


def of_a_hub(bundle: Path, folder: Path) -> Path:
    """As the cache of a model hub does: all files under other names, in one other folder."""
    blobs, made = folder / "blobs", folder / "snapshots" / "1" / "copy.bundle"
    blobs.mkdir()
    made.mkdir(parents=True)
    for number, file in enumerate(sorted(bundle.iterdir())):
        shutil.copyfile(file, blobs / f"blob{number}")
        (made / file.name).symlink_to(Path("../../../blobs") / f"blob{number}")
    return made


def weights_elsewhere(bundle: Path, folder: Path) -> Path:
    """As who has a disk of its own for what is large."""
    made = Path(shutil.copytree(bundle, folder / "copy.bundle"))
    (folder / "disk").mkdir()
    shutil.move(made / "weights.bin", folder / "disk" / "weights.bin")
    (made / "weights.bin").symlink_to(folder / "disk" / "weights.bin")
    return made


LINKS: dict[str, Callable[[Path, Path], Path]] = {
    "hard": hard,
    "of a hub": of_a_hub,
    "weights elsewhere": weights_elsewhere,
}
