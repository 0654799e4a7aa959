"""The ways in which a system can be set up on this machine: threads, workers, back ends.

Which is fastest differs from machine to machine and from model to model, so all are measured.
"""

import os
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
# Optimum needs an older Transformers than is measured here, and so a separate environment.
OPTIMUM_PYTHON = REPOSITORY / ".venv-optimum" / "bin" / "python"
OURS = {"float32": "tfexport", "int8": "tfexport int8"}
# Not peers: other forms of what tfexport exports, or more than a peer computes.
OWN = {*OURS.values(), "tfexport, scores", "generate.onnx", "two graphs", "TorchScript"}
CTRANSLATE2 = {"float32": "CTranslate2", "int8": "CTranslate2 int8"}
ON_ONNXRUNTIME = ("generate.onnx", "two graphs", "Optimum-ONNX")
# What can search with beams.
BEAM_SYSTEMS = {*OURS.values(), *CTRANSLATE2.values(), "Transformers", "Optimum-ONNX"}
# Measured unless others are named; without torch.compile, whose compiling takes minutes a process.
DEFAULT = (
    "tfexport", "tfexport, scores", "CTranslate2", "Transformers", "Optimum-ONNX", "TorchScript",
    "eager, cached", "eager, uncached", "tfexport int8", "CTranslate2 int8",
)  # fmt: skip
QUICK = ("tfexport", "CTranslate2", "tfexport int8", "CTranslate2 int8")


@dataclass(frozen=True)
class Size:
    """Dimensions of a random model."""

    d_model: int
    layers: int
    d_ff: int
    vocab_size: int


@dataclass(frozen=True)
class Configuration:
    """One way to set a system up.

    Attributes:
        name: as tables show it.
        threads: that one worker computes with.
        workers: that share the rows of a batch evenly.
        environment: variables that its process is started with; libraries read them on loading.
        options: of the system itself; see benchmarks.systems.
    """

    name: str
    threads: int = 1
    workers: int = 1
    environment: dict[str, str] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)

    @property
    def cores(self) -> int:
        """How many threads compute at once."""
        return self.threads * self.workers


ONE = Configuration("1 thread")
TWO = Configuration("2 threads", threads=2)
# OpenMP's threads sleep while they wait, and leave the core to others; by default they spin.
TWO_ASLEEP = Configuration(
    "2 threads asleep", threads=2, environment={"OMP_WAIT_POLICY": "PASSIVE"}
)
WORKERS = Configuration("2 workers", workers=2)
ENGINES = ("onnxruntime", "native")
NATIVE_SET = "TFEXPORT_NATIVE_INSTRUCTION_SET"
RANKING_SETS = ("amx",)  # of the native engine, which rank words by integers of two digits
# Variables that keep each system's libraries from instructions beyond a set. onnxruntime has none.
INSTRUCTION_SETS = {
    "avx2": {
        NATIVE_SET: "avx2",
        "CT2_FORCE_CPU_ISA": "AVX2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "DNNL_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "ATEN_CPU_CAPABILITY": "avx2",
    },
}
BACK_ENDS = {
    "oneDNN": {"CT2_USE_MKL": "0"},
    "MKL": {"CT2_USE_MKL": "1", "CT2_PACKED_GEMM": "1"},
    "MKL unpacked": {"CT2_USE_MKL": "1", "CT2_PACKED_GEMM": "0"},
}


def configurations_of(system: str, isa: str | None = None) -> list[Configuration]:
    """Every way in which a system is measured.

    Args:
        system: its name.
        isa: one of INSTRUCTION_SETS, beyond which nothing is used. Without ways that run
            onnxruntime, which cannot be told.
    """
    if isa:
        return [
            replace(way, environment={**way.environment, **INSTRUCTION_SETS[isa]})
            for way in configurations_of(system)
            if system not in ON_ONNXRUNTIME and way.options.get("engine") != "onnxruntime"
        ]
    if system in ("tfexport", "tfexport, scores", "tfexport int8"):
        return [
            _with(way, engine, options={"engine": engine})
            for engine in ENGINES
            for way in (ONE, TWO, WORKERS)
        ]
    # No OpenMP in onnxruntime; the tutorials' loop is ten times too slow for it to matter.
    if system in ON_ONNXRUNTIME or system == "eager, uncached":
        return [ONE, TWO]
    if system in CTRANSLATE2.values():
        ways = [ONE, TWO, TWO_ASLEEP, WORKERS]
        return [
            _with(way, back_end, environment=environment)
            for back_end, environment in BACK_ENDS.items()
            for way in ways
        ]
    ways = [ONE, TWO, TWO_ASLEEP]
    if system == "Transformers":
        return [
            _with(way, attention, options={"attention": attention})
            for attention in ("sdpa", "eager")
            for way in ways
        ]
    if system == "torch.compile":
        frozen = {"TORCHINDUCTOR_FREEZING": "1"}
        return [ONE, TWO, *(_with(way, "frozen", environment=frozen) for way in (ONE, TWO))]
    return ways


def weights_of(system: str) -> str:
    """Data type of a system's weights: "float32" or "int8"."""
    return "int8" if "int8" in system else "float32"


def ranks_by_integers(way: Configuration) -> bool:
    """Whether tfexport, set up so, ranks the words of float32 models by integers for beams."""
    if way.options.get("engine") != "native" or not find_spec("tfexport_native"):
        return False
    wanted = way.environment.get(NATIVE_SET) or os.environ.get(NATIVE_SET)
    if wanted:
        return wanted in RANKING_SETS
    import tfexport_native

    return tfexport_native.instruction_sets()[0] in RANKING_SETS


def is_peer(system: str) -> bool:
    """Whether a system is somebody else's, which tfexport is compared with."""
    return system not in OWN


def _with(
    way: Configuration, prefix: str, environment: dict[str, str] | None = None,
    options: dict[str, str] | None = None,
) -> Configuration:  # fmt: skip
    return Configuration(
        f"{prefix}, {way.name}",
        way.threads,
        way.workers,
        {**way.environment, **(environment or {})},
        {**way.options, **(options or {})},
    )
