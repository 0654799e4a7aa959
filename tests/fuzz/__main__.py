"""``python -m tests.fuzz``: drawn cases against everything that reads what a user gives.

Only the project's own errors may come out of a case. It may not end its process, nor take more
than 2 seconds of a processor or 1 GB. Every failure is printed with the command that runs it again,
alone.
"""

import argparse
import hashlib
import sys
from pathlib import Path

from tests.fuzz.runner import GROUPS, Case, make_cases, run
from tests.support.paths import REPOSITORY


def main() -> int:
    """Run cases and print what failed; 1 if anything did."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=2000, metavar="N")
    parser.add_argument("--group", choices=GROUPS, action="append", help="all if not given")
    parser.add_argument("--seed", type=int, default=0, help="of the first case of a group")
    parser.add_argument("--workers", type=int, default=2, help="processes at a time")
    given = parser.parse_args()
    cases = make_cases(given.cases, given.group or GROUPS, given.seed)

    def tell(case: Case, problem: str) -> None:
        print(f"{case.command}  # {problem}", flush=True)

    outcome = run(cases, make_bundle(), given.workers, tell=tell)
    print(outcome.table())
    return 1 if outcome.failures else 0


def make_bundle() -> Path:
    """A small bundle with all graphs, kept for as long as the exporter is the same."""
    digest = hashlib.sha256()
    for folder in ("tfexport", "tests/fuzz"):
        for path in sorted((REPOSITORY / folder).glob("**/*.py")):
            if {"export", "model_src", "bundle.py", "graph_io.py", "__main__.py"} & {*path.parts}:
                digest.update(path.read_bytes())
    path = REPOSITORY / "build" / "fuzz" / f"{digest.hexdigest()[:16]}.bundle"
    if not path.exists():
        print("exporting a bundle to draw cases from", flush=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        _export(path)
    return path


def _export(path: Path) -> None:
    from tests.support import tutorial
    from tfexport.export import export

    model = tutorial.make(
        seed=38, scale=3.0, d_model=8, num_heads=2, encoder_layers=1, decoder_layers=1, d_ff=12
    )
    words = ["<pad>", "<s>", "</s>", "<unk>", *(f"w{i}" for i in range(4, 19))]
    for side, size in (("source", 17), ("target", 19)):
        path.with_name(f"{side}.txt").write_text("\n".join(words[:size]) + "\n")
    export(
        model,
        path,
        config={"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3, "add_source_eos": True},
        source_tokenizer=path.with_name("source.txt"),
        target_tokenizer=path.with_name("target.txt"),
        verify=False,
        force=True,  # another run may have made it meanwhile
    )


if __name__ == "__main__":
    sys.exit(main())
