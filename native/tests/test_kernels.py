"""Kernels of every instruction set beside plain formulas: here, and where emulators are, elsewhere.

The checks themselves are C++, in ``kernels/``; each test builds them and runs them in its own way.
"""

import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[1]
QUICKLY = "-O1 -ffp-contract=fast"  # a release's flags take twice as long
X86 = platform.machine() in ("x86_64", "AMD64")


def sets_of(*architectures: str) -> list[str]:
    """The instruction sets that CMakeLists.txt builds for an architecture, fastest first."""
    text = (NATIVE / "CMakeLists.txt").read_text()
    block = text.partition(f'MATCHES "{"|".join(architectures)}")')[2]
    found = re.findall(r"add_set\((\w+) ", block.partition("TFN_ARCHITECTURE")[0])
    assert found
    return [*found, "portable"]


def need(*programs: str) -> None:
    """Skip the test if one of the programs is missing."""
    missing = [program for program in programs if not shutil.which(program)]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")


def build(folder: Path, **options: str) -> Path:
    """Build the checks with CMake's options; gives their program."""
    need("cmake")
    given = [f"-D{name}={value}" for name, value in {"TFN_TESTS": "ON", **options}.items()]
    commands = (
        ["cmake", *given, str(NATIVE)],
        ["cmake", "--build", ".", "--target", "kernels", "--parallel", "2"],
    )
    for command in commands:
        made = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert made.returncode == 0, made.stdout + made.stderr
    return folder / "kernels"


def run(*command: object) -> dict[str, str]:
    """Run the checks; gives what they said of each instruction set."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return {line.split(":")[0]: line for line in done.stdout.splitlines()}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Path:
    """The program; for `make test` with two sets, which takes a third of the time.

    The fastest set of this machine is the one that all other tests of the engine run.
    """
    few = X86 and pytestconfig.getoption("markexpr") == "not exhaustive"
    only = "avx2;portable" if few else ""
    return build(tmp_path_factory.mktemp("here"), TFN_OPTIMIZE=QUICKLY, TFN_ONLY=only)


def test_instruction_sets_of_this_machine(here: Path) -> None:
    named = run(here, "--list")
    found = run(here)
    assert list(found) == list(named)
    assert list(found)[-1] == "portable"
    assert all(said.endswith(" 0 failed") for said in found.values())


def test_the_best_way_to_share_work_is_learnt(here: Path) -> None:
    assert run(here, "--autotuner")["autotuner"].endswith(" 0 failed")


def test_sums_are_rounded_once(here: Path) -> None:
    assert run(here, "--sums")["sums"].endswith(" 0 failed")


def test_every_value_of_16_bits_is_widened_and_narrowed(here: Path) -> None:
    assert run(here, "--halves")["halves"].endswith(" 0 failed")


@pytest.mark.skipif(sys.platform != "linux", reason="reads what nm says of ELF files")
def test_no_other_code_runs_with_the_instructions_of_a_set(here: Path) -> None:
    need("nm")
    objects = list(here.parent.rglob("kernels/*.o"))
    sets = [path for path in objects if path.name.split(".")[0] not in ("choose", "cpu")]
    sets = [path for path in sets if "engine" in path.parts]
    assert len(sets) >= 2
    for path in sets:
        listed = subprocess.run(
            ["nm", "--defined-only", "--extern-only", str(path)], capture_output=True, text=True
        )
        names = [line.split()[-1] for line in listed.stdout.splitlines()]
        assert len(names) == 1, f"{path.name} gives others {names}"


@pytest.mark.exhaustive
@pytest.mark.skipif(not X86, reason="emulates instructions of x86-64 beside its own AVX2")
def test_instruction_sets_of_other_x86_machines(tmp_path: Path) -> None:
    program = build(tmp_path, TFN_EMULATED="ON", TFN_OPTIMIZE=QUICKLY)
    if "avx2" not in run(program, "--list"):
        pytest.skip("the rest of these sets needs AVX2")
    found = run(program, "--all")
    assert list(found) == sets_of("x86_64", "AMD64")


@pytest.mark.exhaustive
@pytest.mark.skipif(not X86, reason="tunes for processors of x86-64")
def test_results_do_not_depend_on_what_the_compiler_tunes_for(tmp_path: Path) -> None:
    """Some tunings leave products and sums apart in loops of a single sum."""
    built = build(tmp_path, TFN_OPTIMIZE="-O2 -ffp-contract=fast -mtune=znver3")
    found = run(built, "avx2")
    assert found["avx2"].endswith(" 0 failed")


@pytest.mark.exhaustive
def test_instruction_sets_as_they_are_shipped(tmp_path: Path) -> None:
    found = run(build(tmp_path))
    assert all(said.endswith(" 0 failed") for said in found.values())


@pytest.mark.exhaustive
def test_64_bit_arm(tmp_path: Path) -> None:
    compiler = "aarch64-linux-gnu-g++"
    need(compiler, "qemu-aarch64")
    program = build(
        tmp_path,
        CMAKE_SYSTEM_NAME="Linux",
        CMAKE_SYSTEM_PROCESSOR="aarch64",
        CMAKE_CXX_COMPILER=compiler,
        CMAKE_EXE_LINKER_FLAGS="-static",
        TFN_OPTIMIZE=QUICKLY,
    )
    assert list(run("qemu-aarch64", program)) == sets_of("aarch64", "arm64")
    old = run("qemu-aarch64", "-cpu", "cortex-a57", program, "--list")
    assert list(old) == ["neon", "portable"], "a processor without dot products"


@pytest.mark.exhaustive
@pytest.mark.skipif(not X86, reason="runs programs for x86-64")
def test_windows(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = "x86_64-w64-mingw32-g++-posix"
    need(compiler, "wine")
    program = build(
        tmp_path,
        CMAKE_SYSTEM_NAME="Windows",
        CMAKE_SYSTEM_PROCESSOR="AMD64",
        CMAKE_CXX_COMPILER=compiler,
        TFN_OPTIMIZE=QUICKLY,
    ).with_suffix(".exe")
    monkeypatch.setenv("WINEPREFIX", str(tmp_path / "wine"))
    monkeypatch.setenv("WINEDEBUG", "-all")
    monkeypatch.setenv("WINEDLLOVERRIDES", "mscoree,mshtml=")  # or it offers to install them
    found = run("wine", program)
    assert list(found) == [name for name in run(here, "--list") if name != "amx"]
    assert all(said.endswith(" 0 failed") for said in found.values())


def test_no_kernel_reads_or_writes_beside_its_arrays(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    if not pytestconfig.getoption("--sanitizers"):
        pytest.skip("`make sanitize` runs it: building takes minutes")
    run(build(tmp_path, TFN_SANITIZE="address,undefined"))
