"""The language tokens of a call, for models with language tokens."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace

from tfexport.errors import Message, Option, Problem, join_some, nearest_name, shown
from tfexport.languages import SOURCE_PLACES, Languages
from tfexport.runtime.text.codec import PLAIN, Framing


@dataclass(frozen=True)
class LanguagePair:
    """The languages that a caller names.

    Attributes:
        source: code of the source language; None for the bundle's default.
        target: code of the target language; None for the bundle's default.
        as_ids: whether sources are ids, which contain their language token.
    """

    source: str | None = None
    target: str | None = None
    as_ids: bool = False


@dataclass(frozen=True)
class LanguageTokens:
    """The ids of language tokens, by position.

    Attributes:
        framing: tokens around a source text.
        first: the forced first token of the target; None for none.
        start: the decoder's start token; None for the usual one.
        problems: problems of the codes.
    """

    framing: Framing = PLAIN
    first: int | None = None
    start: int | None = None
    problems: tuple[Problem, ...] = field(default=())


NO_LANGUAGES = LanguagePair()
_ONE = "has one source and one target language"


def find_language_tokens(
    languages: Languages | None, language_pair: LanguagePair, given: Collection[object]
) -> LanguageTokens:
    """Convert the languages of a call to tokens, at the positions of the bundle.

    Args:
        languages: the languages of the bundle.
        language_pair: languages of the caller.
        given: ids of the target's first token and of the start token, if the caller gave them. A
            language token there counts as its code.
    """
    if languages is None and language_pair.source is None and language_pair.target is None:
        return LanguageTokens()
    known = languages or Languages()
    if known.target is None and known.target_place in ("first", "start"):
        codes = [code for code, number in known.ids.items() if number in given]
        known = replace(known, target=next(iter(codes), None))
    problems = tuple(_problems(languages, known, language_pair))
    if problems:
        return LanguageTokens(problems=problems)
    source = _id(known, known.source_place, language_pair.source or known.source)
    target = _id(known, known.target_place, language_pair.target or known.target)
    around = {
        place: () if source is None or known.source_place != place else (source,)
        for place in SOURCE_PLACES
    }
    framing = Framing(around["before"], around["after"])
    if known.target_place == "source":
        unmarked = target is None and not language_pair.as_ids
        asked = _which("target", known) if unmarked else None
        framing = replace(framing, mark=target, marks=frozenset(known.ids.values()), asked=asked)
    return LanguageTokens(
        framing,
        first=target if known.target_place == "first" else None,
        start=target if known.target_place == "start" else None,
    )


def _id(known: Languages, place: str | None, code: str | None) -> int | None:
    return None if place is None or code is None else known.ids[code]


def _problems(
    languages: Languages | None, known: Languages, language_pair: LanguagePair
) -> Iterator[Problem]:
    for side in ("source", "target"):
        option, code = f"{side}_language", getattr(language_pair, side)
        place, default = getattr(known, f"{side}_place"), getattr(known, side)
        of_text = side == "source" or place == "source"
        if code is not None and not isinstance(code, str):
            yield Problem(option, f"{shown(code)} is not a language code")
        elif code is None:
            # Texts may contain the language token themselves; each text without one is reported
            # later.
            if place not in (None, "source") and default is None and not language_pair.as_ids:
                yield Problem(option, _which(side, known))
        elif place is None:
            if languages is None or default is None:
                yield Problem(option, f"{shown(code)} has no effect: this model {_ONE}; omit it")
            elif code != default:
                yield Problem(option, f"{shown(code)} is not {default!r}, the model's only one")
        elif code not in known.ids:
            near = nearest_name(code, known.ids)
            hint = f"did you mean {near!r}?" if near else f"known: {_codes(known)}"
            yield Problem(option, f"{shown(code)} is not a language of the model; {hint}")
        elif language_pair.as_ids and of_text:
            yield Problem(option, "has no effect on ids; put the id of the language among them")


def _which(side: str, known: Languages) -> Message:
    return Message("the model needs a ", side, " language: ",
                   Option(f"{side}_language"), f" is one of {_codes(known)}")  # fmt: skip


def _codes(known: Languages) -> str:
    return join_some(sorted(known.ids), 12)
