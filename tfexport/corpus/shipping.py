"""Sending a bundle to machines that cannot read the driver's disk.

Its files go into Ray's object store in parts. The first worker of a node writes them into a folder
of that node's temporary directory, where the others find them. Opening a bundle checks the sha256
of every file.
"""

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfexport.bundle import MANIFEST, open_bundle
from tfexport.errors import BundleError, OutputExistsError
from tfexport.locks import writing

PART = 64 << 20  # bytes of an object in the store


@dataclass(frozen=True)
class ShippedBundle:
    """A bundle that any node can open.

    Attributes:
        path: the path of the folder on the driver.
        digest: sha256 of the manifest, which has those of all other files.
        parts: references to the content of each file, in order; none if it need not be shipped.
    """

    path: str
    digest: str
    parts: dict[str, list[Any]]

    def folder(self) -> Path:
        """The bundle's folder on this node, which is fetched if it does not exist.

        Raises:
            BundleError: the received files differ from the sent ones.
        """
        seen = Path(self.path)
        if not self.parts or _digest(seen) == self.digest:
            return seen
        folder = _cache() / self.digest
        while not self._is_complete(folder):
            try:
                with writing(folder):
                    if not self._is_complete(folder):
                        self._fetch(folder)
            except OutputExistsError:  # another worker of this node is fetching it
                time.sleep(0.2)
        return folder

    def _is_complete(self, folder: Path) -> bool:
        """Whether all files exist: a cleaner of temporary folders may have removed some."""
        return all((folder / name).is_file() for name in self.parts)

    def _fetch(self, folder: Path) -> None:
        import ray

        partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            for name, parts in self.parts.items():
                path = partial / name
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("wb") as file:
                    for part in parts:
                        file.write(ray.get(part))
            if _digest(partial) != self.digest:
                raise BundleError(f"{self.path}: its manifest did not arrive as it was sent.")
            open_bundle(partial)
            shutil.rmtree(folder, ignore_errors=True)
            partial.replace(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def ship(path: str | os.PathLike[str], *, shared: bool) -> ShippedBundle:
    """Prepare a bundle for all nodes of the cluster.

    Args:
        path: the path of the bundle.
        shared: whether every node can read the driver's disk, so that nothing is sent.

    Raises:
        BundleError: it is missing or damaged.
    """
    folder = Path(path).absolute()
    manifest = open_bundle(folder)
    digest = _digest(folder)
    assert digest is not None
    if shared:
        return ShippedBundle(str(folder), digest, {})
    import ray

    names = [MANIFEST, *manifest.files]
    parts = {name: [ray.put(part) for part in _parts(folder / name)] for name in names}
    return ShippedBundle(str(folder), digest, parts)


def _parts(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while part := file.read(PART):
            yield part


def _digest(folder: Path) -> str | None:
    try:
        return hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest()
    except OSError:
        return None


def _cache() -> Path:
    """A folder for bundles that only this user can write to."""
    owner = os.getuid() if hasattr(os, "getuid") else "user"
    folder = Path(tempfile.gettempdir(), f"tfexport-bundles-{owner}")
    folder.mkdir(mode=0o700, exist_ok=True)
    if hasattr(os, "getuid") and (folder.is_symlink() or folder.stat().st_uid != os.getuid()):
        raise BundleError(f"{folder}: belongs to another user. Remove it, or set TMPDIR.")
    return folder
