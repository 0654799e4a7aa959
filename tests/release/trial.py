"""A wheel in fresh environments: the lines of the guides, with the wheel in place of the clone.

    python -m tests.release.trial dist/tfexport-*.whl --python python3.12

Each guide is followed in a folder and an environment of its own; `pip install .` is that wheel.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from tests.support.documents import read_blocks
from tests.support.paths import REPOSITORY, VERSION_1

GUIDES = REPOSITORY / "docs" / "guides"
# Nothing of the environment that this runs in.
HIDDEN = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
BASE = "pip install .\ntfexport --version\necho 'w12 w4 w4 w5 w6' | tfexport translate tiny.bundle"
EXPORT = (
    "pip install '.[export,tokenizers]'\n"
    "tfexport onnx --checkpoint examples/de-en -o de-en.bundle\n"
)
# Each with its last line of output.
WANTED = {
    "base": "w6 w15 w5 w7 w7 w7 w7 w7",
    "export": "equal to torch.nn.Transformer",
    "python": "Where's the station?",
    "http": "Good morning.",
    "corpus": "Good morning.",
}
# The oldest onnxruntime reads portable graphs only, which those of the stored bundle are not.
REFUSED = "needs onnxruntime 1.21 or newer"


class Trial:
    """Follows guides.

    Args:
        folder: for environments and what guides write; ``de-en.bundle`` lies in it, if it is made.
        python: that environments are made of.
        wheel: to install.
        resolution: of dependencies: ``highest``, or ``lowest-direct`` of what pyproject.toml names.
        constraints: a file for pip and uv, or None.
    """

    def __init__(
        self, folder: Path, python: str, wheel: Path, resolution: str, constraints: Path | None
    ) -> None:
        self._folder, self._python, self._wheel = folder, python, wheel.resolve()
        self._resolution, self._constraints = resolution, constraints

    def run(self, name: str) -> str:
        """Follow one guide, and give what it printed.

        Raises:
            CalledProcessError: a line failed.
        """
        here = self._folder / name
        here.mkdir()
        (here / "tiny.bundle").symlink_to(VERSION_1)
        (here / "examples").symlink_to(REPOSITORY / "examples")
        if (self._folder / "de-en.bundle").exists():
            (here / "de-en.bundle").symlink_to(self._folder / "de-en.bundle")
        environment = here / "environment"
        subprocess.run([self._python, "-m", "venv", environment], check=True)
        done = subprocess.run(
            ["bash", "-e", "-m", "-o", "pipefail", "-c", self._script(name)],
            cwd=here, env=self._variables(environment), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        if done.returncode:
            raise click.ClickException(f"{name}: {done.stdout[-4000:]}")
        if name == "export":
            shutil.move(here / "de-en.bundle", self._folder / "de-en.bundle")
        shutil.rmtree(environment)
        return done.stdout

    def _script(self, name: str) -> str:
        if name == "base":
            text = BASE
            if self._resolution != "highest":
                text = text.replace("echo", "! echo")
        elif name == "export":
            text = EXPORT
            if self._resolution != "highest":
                text = text.replace("tfexport onnx ", "tfexport onnx --portable ")
        else:
            text = _shell(name)
        if name == "python":
            (block,) = [b for b in read_blocks(GUIDES / "python.md") if b.language == "python"]
            (self._folder / name / "block.py").write_text(block.text, encoding="utf-8")
            text += "python block.py\n"
        return re.sub(r"^pip install '?\.(\[[\w,]+\])?'?", self._install, text, flags=re.MULTILINE)

    def _install(self, found: "re.Match[str]") -> str:
        extras = re.findall(r"\w+", found[1] or "")
        if self._resolution == "highest":
            what = f"{self._wheel}[{','.join(extras)}]" if extras else self._wheel
            return f"pip install --quiet --disable-pip-version-check '{what}'"
        # Of a wheel's own dependencies uv takes the newest: only pyproject.toml's are direct.
        chosen = " ".join(f"--extra {extra}" for extra in extras)
        return (
            f"uv pip install --quiet --resolution {self._resolution} -r "
            f"'{REPOSITORY / 'pyproject.toml'}' {chosen} && "
            f"pip install --quiet --disable-pip-version-check --no-deps '{self._wheel}'"
        )

    def _variables(self, environment: Path) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name not in HIDDEN}
        uv = Path(sys.executable).parent  # uv may be in the environment that this runs in
        kept["PATH"] = f"{environment / 'bin'}:{os.environ['PATH']}:{uv}"
        kept["VIRTUAL_ENV"] = str(environment)
        if self._constraints is not None:
            kept["PIP_CONSTRAINT"] = kept["UV_CONSTRAINT"] = str(self._constraints.resolve())
        return kept


def _shell(guide: str) -> str:
    (block,) = [b for b in read_blocks(GUIDES / f"{guide}.md") if not b.language]
    return block.text


@click.command()
@click.argument("wheel", type=click.Path(exists=True, path_type=Path))
@click.option("--python", default=sys.executable, help="That environments are made of.")
@click.option("--only", multiple=True, type=click.Choice(list(WANTED)))
@click.option("--bundle", type=click.Path(exists=True, path_type=Path), help="The demo's bundle, "
              "if `export` is not tried.")  # fmt: skip
@click.option("--resolution", type=click.Choice(["highest", "lowest-direct"]), default="highest")
@click.option("--constraints", type=click.Path(exists=True, path_type=Path))
def main(
    wheel: Path,
    python: str,
    only: tuple[str, ...],
    bundle: Path | None,
    resolution: str,
    constraints: Path | None,
) -> None:
    """Follow the guides from a wheel, and say which lines work."""
    with tempfile.TemporaryDirectory() as folder:
        if bundle is not None:
            shutil.copytree(bundle, Path(folder) / "de-en.bundle")
        trial = Trial(Path(folder), python, wheel, resolution, constraints)
        for name in only or WANTED:
            printed = trial.run(name)
            oldest = resolution != "highest" and name == "base"
            wanted = REFUSED if oldest else WANTED[name]
            if wanted not in printed:
                raise click.ClickException(f"{name}: {wanted!r} is not in\n{printed}")
            click.echo(f"{name}: passed")


if __name__ == "__main__":
    main()
