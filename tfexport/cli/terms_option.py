"""``tfexport translate --terms``: terms of a glossary, and reports of those that are not met."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tfexport.atomic import naming
from tfexport.errors import ConfigError, Option, Problem, join_problems

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tfexport.runtime.engine import Engine
    from tfexport.runtime.results import Term
    from tfexport.runtime.terms import Terms


def terms_options(command: Any) -> Any:
    """Add ``--terms`` and ``--languages``."""
    for option in (
        click.option("--languages", metavar="de-en", help="With --terms: the languages of source "
                     "and target, which TBX needs.  [default: those of the bundle]"),
        click.option("--terms", type=click.Path(), metavar="FILE", help="Glossary, as .tsv, .csv "
                     "or .tbx: where a source phrase occurs, the translation has its target "
                     "phrase. Those that cannot be met are reported."),
    ):  # fmt: skip
        command = option(command)
    return command


def check_terms_call(call: Any) -> None:
    """Refuse options that contradict ``--terms``, or need it.

    Raises:
        ConfigError: there are any; all are listed.
    """
    problems = []
    if call.terms is None and call.languages is not None:
        problems.append("--languages needs --terms")
    if call.terms is not None:
        problems += [
            f"--terms applies to text, not to --{name}"
            for name in ("ids", "inputs")
            if getattr(call, name)
        ]
    if problems:
        raise ConfigError(join_problems("translate", [Problem(None, text) for text in problems]))


def read_terms(call: Any, engine: "Engine") -> "Terms | None":
    """The terms of ``call.terms``; None without a glossary.

    Raises:
        InputError: naming everything that is wrong with it.
        ConfigError: ``call.languages`` is no pair of languages.
    """
    if call.terms is None:
        return None
    from tfexport.runtime.terms import Terms
    from tfexport.runtime.text.glossary_files import read_glossary

    source, target = _languages(call, engine)
    with naming(call.terms):
        found = read_glossary(Path(call.terms), source, target)
    return Terms.of(found.entries.items())


def _languages(call: Any, engine: "Engine") -> tuple[str | None, str | None]:
    """The languages of source and target; None for one that nothing tells."""
    from tfexport.runtime.text.language_codes import PAIR, ModelLanguages

    if call.languages is not None:
        pair = PAIR.fullmatch(call.languages)
        if pair is None or "," in call.languages:
            problem = Problem(None, f"{call.languages!r} is not a pair such as de-en")
            raise ConfigError(join_problems(Option("languages"), [problem]))
        return pair[1], pair[2]
    own = engine.manifest.languages
    known = ModelLanguages.of(engine.path.stem, own, None)
    target = None if own is None else own.target
    if len(known.targets) == 1:
        (target,) = known.targets
    return call.source_language or known.default_source, call.target_language or target


def unmet(terms: "Sequence[Term]") -> str:
    """A sentence about terms that a translation does not meet."""
    listed = [
        f"{term.source!r} as {' or '.join(repr(target) for target in term.targets)}"
        for term in dict.fromkeys(terms)
    ]
    return f"not met: {', '.join(listed)}"


def unmet_terms(terms: int, lines: int, unit: str) -> str:
    """A sentence about the number of terms that were not met."""
    what = "1 term was" if terms == 1 else f"{terms:,} terms were"
    where = f"1 {unit.removesuffix('s')}" if lines == 1 else f"{lines:,} {unit}"
    return f"{what} not met, in {where}"
