"""``python -m tests.drawn_documents``: documents drawn from grammars, translated and judged.

One translator copies, one writes words in capitals, one is careless with words and placeholders; a
bundle is another one. The judge shares no code with the project.
"""

import argparse
import sys
from pathlib import Path

from tests.drawn_documents.cases import draw, list_bad, run, table
from tests.drawn_documents.engines import ENGINES, of_bundle, stub, translate_drawn


def main() -> int:
    """Run cases and print the tables; 1 if a document is refused or wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.drawn_documents", description=__doc__)
    parser.add_argument("--cases", type=int, default=2000, metavar="N")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="of the first case")
    parser.add_argument("--engine", choices=ENGINES, action="append", help="all if not given")
    parser.add_argument("--bundle", type=Path, help="translate by this bundle, from German")
    parser.add_argument(
        "--show", type=int, metavar="SEED", help="only print a document, there and back"
    )
    options = parser.parse_args()
    engines = {name: stub(name) for name in options.engine or ENGINES}
    if options.bundle:
        engines = {"bundle": of_bundle(options.bundle)}
    bad = False
    for name, translate in engines.items():
        if options.show is not None:
            drawn = draw(options.show, name == "bundle")
            made, reported = translate_drawn(drawn, translate)
            print(f"{drawn.content}\n---- {name}\n{made}\n---- reported: {reported}")
            continue
        results = run(range(options.first, options.first + options.cases), name, translate)
        print(f"{name}\n{table(results)}\n{list_bad(results)}\n", flush=True)
        bad = bad or any(one.refused or one.difference for one in results)
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
