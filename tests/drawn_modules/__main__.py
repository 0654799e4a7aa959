"""``python -m tests.drawn_modules``: modules drawn from a grammar, exported and judged.

Each is written as a user's file, exported, and compared with its own forward over the complete
prefix. Results are appended to ``build/fuzz-modules/results.jsonl``; a seed that is there is not
run again. The source of each bad case stays beside it.
"""

import argparse
import sys
from pathlib import Path

from tests.drawn_modules.case import DIED, DIFFERENCE, TRACEBACK, Result
from tests.drawn_modules.model_source import source_of
from tests.drawn_modules.productions import draw_design
from tests.drawn_modules.runner import FOLDER, WAIT, is_of_this_grammar, read_results, run
from tests.drawn_modules.table import bad_table, production_table, summary


def main() -> int:
    """Run cases and print the tables; 1 if a result is wrong, or an error is no message."""
    parser = argparse.ArgumentParser(prog="python -m tests.drawn_modules", description=__doc__)
    parser.add_argument("--cases", type=int, default=1000, metavar="N")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="of the first case")
    parser.add_argument("--workers", type=int, default=2, help="processes at a time")
    parser.add_argument("--wait", type=float, default=WAIT, help="seconds of a case")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of the results")
    parser.add_argument("--table", action="store_true", help="only print the tables of the results")
    parser.add_argument("--show", type=int, metavar="SEED", help="only print the source of a seed")
    parser.add_argument("--planted", action="store_true", help="only look for planted mistakes")
    options = parser.parse_args()
    if options.show is not None:
        design = draw_design(options.show)
        print(f"# {design.line}\n{source_of(design)}")
        return 0
    if options.planted:
        from tests.drawn_modules.planted import find_planted

        return find_planted(options.first)
    seeds = range(options.first, options.first + options.cases)
    if not options.table:
        run(seeds, options.folder, options.workers, options.wait, tell)
    results = [each for each in read_results(options.folder) if is_of_this_grammar(each)]
    if not options.table:
        results = [result for result in results if result.seed in seeds]
    print(production_table(results))
    print(bad_table(results))
    print(summary(results))
    wrong = (DIFFERENCE, TRACEBACK, DIED)
    return 1 if any(result.outcome in wrong for result in results) else 0


def tell(result: Result) -> None:
    """One line for each result, on stderr."""
    bad = f": {result.message[:160]}" if result.is_bad else ""
    print(
        f"{result.seed} {result.outcome} {result.seconds:.0f} s{bad}", file=sys.stderr, flush=True
    )


if __name__ == "__main__":
    sys.exit(main())
