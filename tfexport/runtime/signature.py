"""The signature of a figure: one line by which two people see whether they measured the same.

It names what a result, and how fast it came, depend on::

    bundle:51dcf27445a7|tfexport:0.2.0|onnxruntime:1.31.1|engine:onnxruntime|cpu:avx2+avx512f|threads:2
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tfexport
from tfexport.bundle import MANIFEST, read_manifest
from tfexport.paths import PathLike
from tfexport.runtime.model import native_engine
from tfexport.runtime.model.engine_name import EngineName
from tfexport.runtime.model.open_model import choose_engine
from tfexport.runtime.parallel.cpu import instruction_set, usable_cores

ONNXRUNTIME, NATIVE = "onnxruntime", "native"
DIGITS = 12  # of a digest that are shown, as in the server's versions of models


@dataclass(frozen=True)
class Signature:
    """The conditions under which a figure was made.

    Attributes:
        artifact: its kind and the beginning of its digest, as ``bundle:51dcf27445a7``.
        engine: what computed.
        instruction_set: that it uses; of others, which do not tell, what the processor has.
        workers: batches at a time.
        threads: of each.
        options: that were given.
        libraries: further ones that the figure depends on, name to version.
    """

    artifact: str
    engine: str = ONNXRUNTIME
    instruction_set: str = field(default_factory=instruction_set)
    workers: int = 1
    threads: int = field(default_factory=usable_cores)
    options: Mapping[str, Any] = field(default_factory=dict)
    libraries: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, str]:
        """Field to its value, in the order of the line."""
        kind, _, digest = self.artifact.partition(":")
        return {
            kind: digest,
            "tfexport": tfexport.__version__,
            ONNXRUNTIME: onnxruntime_version(),
            **self.libraries,
            "engine": self.engine,
            "cpu": self.instruction_set,
            "threads": str(self.threads),
            **({"workers": str(self.workers)} if self.workers > 1 else {}),
            **{name: _shown(value) for name, value in sorted(self.options.items())},
        }

    def __str__(self) -> str:
        """The line."""
        return "|".join(f"{name}:{value}" for name, value in self.to_dict().items())


def of_artifact(path: PathLike, engine: EngineName = "onnxruntime", **values: Any) -> Signature:
    """The signature of a figure that a bundle or a single file gave.

    Args:
        path: the bundle's folder, or the file.
        engine: that was asked for; a bundle says which one that is.
        **values: attributes of ``Signature`` that are not their defaults; threads 0 are all cores.

    Raises:
        BundleError: it is a folder, and no bundle.
        OSError: it is a file that cannot be read.
    """
    path = Path(path)
    if values.get("threads") == 0:
        values["threads"] = max(1, usable_cores() // values.get("workers", 1))
    kind = "file" if path.is_file() else "bundle"
    if kind == "bundle":
        if choose_engine(read_manifest(path), engine)[0] == NATIVE:
            values = {"engine": NATIVE, "instruction_set": native_engine.instruction_set()} | values
            own = {native_engine.DISTRIBUTION: native_engine.version()}
            values["libraries"] = {**values.get("libraries", {}), **own}
        path = path / MANIFEST  # which has the digests of all other files
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return Signature(f"{kind}:{digest.hexdigest()[:DIGITS]}", **values)


def onnxruntime_version() -> str:
    """Of the installed onnxruntime, without importing it."""
    from importlib import metadata  # slow to import, and seldom needed

    try:
        return metadata.version(ONNXRUNTIME)
    except metadata.PackageNotFoundError:  # a build of another name, such as onnxruntime-gpu
        return "unknown"


def _shown(value: Any) -> str:
    """A value of an option, without what parts fields."""
    separators = (",", ":")
    text = (
        value if isinstance(value, str) else json.dumps(value, default=str, separators=separators)
    )
    return text.replace("|", "%7C").replace("\n", "%0A")
