"""Tokenization of source texts, with special and language tokens, and detokenization of targets."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from numbers import Integral  # numpy's integers are registered as such
from pathlib import Path
from typing import Any, NamedTuple

from tfexport.bundle import Manifest
from tfexport.errors import (
    InputError,
    Message,
    Option,
    Problem,
    TokenizerError,
    TooLongError,
    join_some,
    nearest_name,
    shown,
)
from tfexport.languages import SOURCE_PLACES, Languages
from tfexport.runtime.text.tokenizer import Tokenizer, load_tokenizer


class Framing(NamedTuple):
    """The language tokens that are added to a source text.

    Attributes:
        before: ids before everything else.
        after: ids after everything else.
        mark: the id after ``before``, unless the text contains one of ``marks``; None for none.
        marks: ids of language tokens that a text may start with.
        asked: the problem of a text without a mark; None if it needs none.
    """

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    mark: int | None = None
    marks: frozenset[int] = frozenset()
    asked: Message | None = None

    def around(self, pieces: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The ids before and after those of one text.

        Raises:
            InputError: the text needs a mark, and has none.
        """
        marked = bool(pieces) and pieces[0] in self.marks
        if self.asked is not None and not marked:
            raise InputError(self.asked)
        mark = () if marked or self.mark is None else (self.mark,)
        return (*self.before, *mark), self.after

    @property
    def sizes(self) -> tuple[int, int]:
        """The numbers of ids before and after those of a text, its own mark included."""
        return len(self.before) + bool(self.marks), len(self.after)


PLAIN = Framing()


class LanguagePair(NamedTuple):
    """The languages that a caller names.

    Attributes:
        source: code of the source language; None for the bundle's default.
        target: code of the target language; None for the bundle's default.
        as_ids: whether sources are ids, which contain their language token.
    """

    source: str | None = None
    target: str | None = None
    as_ids: bool = False


class LanguageTokens(NamedTuple):
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
    problems: tuple[Problem, ...] = ()


NO_LANGUAGES = LanguagePair()
_ONE = "has one source and one target language"


WORD_MARKS = ("▁", "Ġ", " ")  # prefixes of pieces at the start of a word


class TextCodec:
    """The tokenizers of one bundle, loaded when they are first used."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._folder, self._manifest = folder, manifest
        special, config = manifest.special_ids, manifest.config
        self._before = [special.bos] if config["add_source_bos"] else []
        self._after = [special.eos] if config["add_source_eos"] else []
        self._longest = manifest.limits.max_source_length
        self._pieces: dict[int, str] = {}  # see ``pieces``

    def num_special_tokens(self, framing: Framing = PLAIN) -> tuple[int, int]:
        """Numbers of special tokens in front of a source text's own tokens, and after them."""
        before, after = framing.sizes
        return before + len(self._before), len(self._after) + after

    def encode(
        self,
        text: str,
        truncate: bool = False,
        limit: int | None = None,
        framing: Framing = PLAIN,
    ) -> list[int]:
        """Tokenize a source text and add special tokens; a blank text gives no ids.

        Raises:
            InputError: it is not a valid text, or it is too long and ``truncate`` is false.
            TokenizerError: the bundle holds no tokenizer, or an unusable one.
            MissingDependencyError: the tokenizer's library is not installed.
        """
        tokenizer = self.source
        check_text(text)
        if not text.strip():
            return []
        pieces = without_own_end(tokenizer.encode(text), tokenizer, self._after)
        before, after = framing.around(pieces)
        if truncate and (most := self._limit(limit)) is not None:
            special = len(before) + len(self._before) + len(self._after) + len(after)
            pieces = pieces[: max(0, most - special)]
        whole = [*before, *self._before, *pieces, *self._after, *after]
        return self.check_ids(whole, limit=limit)

    def check_ids(
        self, row: Sequence[int], truncate: bool = False, limit: int | None = None
    ) -> list[int]:
        """Check a row of source ids, and cut it if it is too long and ``truncate`` is true.

        Raises:
            InputError: naming what is wrong with it.
        """
        ids = check_ids(row, self._manifest.limits.source_vocab_size)
        limit = self._limit(limit)
        if limit is not None and len(ids) > limit:
            if not truncate:
                raise TooLongError(len(ids), limit)
            ids = ids[:limit]
        return ids

    def _limit(self, asked: int | None) -> int | None:
        if asked is None or self._longest is None:
            return self._longest if asked is None else asked
        return min(asked, self._longest)

    def encode_target(self, value: str | Sequence[int]) -> list[int]:
        """Tokenize a target text, without special tokens, or check target ids.

        Raises:
            InputError: naming what is wrong with it.
            TokenizerError: it is text, and the bundle holds no target tokenizer.
        """
        if isinstance(value, str):
            check_text(value)
            value = self.target.encode(value) if value.strip() else []
        return check_ids(value, self._manifest.limits.target_vocab_size)

    def surfaces(self, text: str) -> list[str]:
        """The part of a source text for each token of the text; see ``encode``."""
        found = self.source.split(text)
        if self.source.own_end is None:
            return found
        pieces = self.source.encode(text)
        return found[: len(without_own_end(pieces, self.source, self._after))]

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Source ids as the vocabulary has them, without white space and its marks."""
        known = self._pieces
        for token in {*ids}.difference(known):
            piece = self.source.piece(token)
            known[token] = "".join(piece.lstrip("".join(WORD_MARKS)).split())
        return [known[token] for token in ids]

    def decode(self, tokens: Sequence[int]) -> str:
        """Detokenize target ids.

        Raises:
            TokenizerError: the bundle holds no tokenizer.
        """
        return self.target.decode(tokens)

    def count_unknowns(self, ids: Sequence[int]) -> int:
        """The number of unknown tokens in a source's ids."""
        unknown = self._manifest.special_ids.unk
        return 0 if unknown is None else ids.count(unknown)

    def fill_unknowns(
        self, tokens: Sequence[int], alignment: Sequence[tuple[int, int]], source: str
    ) -> str:
        """Detokenize, with unknown tokens replaced by the aligned part of the source text.

        Args:
            tokens: target ids.
            alignment: (source position, target position) pairs; positions in the text's tokens.
            source: the source text.
        """
        unk, surfaces, aligned = (
            self._manifest.special_ids.unk,
            self.source.split(source),
            {target: place for place, target in alignment},
        )
        text, pending = "", list[int]()
        space = ""  # between the text so far and the next piece

        def decoded() -> str:
            following = self.decode(pending)
            # A space that is a token of its own is not written twice.
            before = "" if following[:1] == " " else self._space_before(pending[0], space)
            return before + following

        for place, token in enumerate(tokens):
            if token != unk:
                pending.append(token)
                continue
            if pending:
                text += decoded()
            loose = self.target.unknown_is_word or (
                pending and self.target.piece(pending[-1]) in WORD_MARKS
            )
            at = aligned.get(place, len(surfaces))
            surface = surfaces[at] if at < len(surfaces) else self.target.piece(token)
            text += (" " if text and loose and not text.endswith(" ") else "") + surface
            pending, space = [], " "
        if pending:
            text += decoded()
        return text

    def _space_before(self, token: int, space: str) -> str:
        marked = self.target.piece(token).startswith(WORD_MARKS)
        return space if self.target.unknown_is_word or marked else ""

    @cached_property
    def source(self) -> Tokenizer:
        """The source's tokenizer.

        Raises:
            TokenizerError: the bundle holds none.
        """
        found = self._load("source")
        if found is None:
            raise TokenizerError(Message(
                f"{self._folder}: holds no tokenizer, so it takes ids only (on the command line ",
                Option("ids"), ", in Python ``generate``). Export it with ", Option("tokenizer"),
                " to translate text.",
            ))  # fmt: skip
        return found

    @cached_property
    def target(self) -> Tokenizer:
        """The target's tokenizer.

        Raises:
            TokenizerError: the bundle holds none.
        """
        found = self._load("target")
        if found is None:
            raise TokenizerError(f"{self._folder}: holds no target tokenizer.")
        return found

    def _load(self, side: str) -> Tokenizer | None:
        entry = self._manifest.tokenizers.get(side)
        if entry is None:
            return None
        special = self._manifest.special_ids
        return load_tokenizer(
            self._folder / entry.file,
            entry.kind,
            getattr(self._manifest.limits, f"{side}_vocab_size"),
            special.unk,
            hidden=self._manifest.hidden_ids,
        )


def without_own_end(
    pieces: list[int], tokenizer: Tokenizer, after: Sequence[int | None]
) -> list[int]:
    """The tokens of a text without its end token, if it is added again; see ``own_end``."""
    end = tokenizer.own_end
    return pieces[:-1] if end is not None and [*after] == [end] == pieces[-1:] else pieces


def check_rows(name: str, given: Any, kind: str) -> list[Any]:
    """List the values of an argument that has one value for each row of a call.

    Args:
        name: the name of the argument.
        given: any iterable.
        kind: the kind of its values, for the message.

    Raises:
        InputError: it is a single string, or not iterable.
    """
    if isinstance(given, str | bytes):
        raise InputError(Message(Option(name), f": expected a list of {kind}, found one string"))
    try:
        rows = iter(given)
    except TypeError:
        text = f": expected a list of {kind}, found {shown(given)}"
        raise InputError(Message(Option(name), text)) from None
    return list(rows)


def check_text(text: str) -> None:
    """Refuse values that are not strings, or cannot be encoded as UTF-8.

    Raises:
        InputError: naming the value or the reason.
    """
    if not isinstance(text, str):
        raise InputError(f"expected a string, found {shown(text)}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"not valid Unicode text: {error.reason}") from None


def check_ids(row: Sequence[int], size: int) -> list[int]:
    """Check a row of ids of a vocabulary of ``size``; returns plain integers.

    Raises:
        InputError: naming the first that is not an id.
    """
    if isinstance(row, str | bytes):
        raise InputError(f"expected a list of ids, found {shown(row)}")
    try:
        values = list(row)
    except TypeError:
        raise InputError(f"expected a list of ids, found {shown(row)}") from None
    if set(map(type, values)) == {int} and min(values) >= 0 and max(values) < size:
        return values  # the usual case
    return [check_id(value, size) for value in values]


def check_id(value: Any, size: int, least: int = 0) -> int:
    """Check an id of a vocabulary of ``size``, of Python or numpy; returns a plain integer.

    Raises:
        InputError: it is not an integer, or outside the vocabulary.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InputError(f"{shown(value)} is not an integer")
    if not least <= (found := int(value)) < size:
        raise InputError(f"id {shown(value)} is not in the vocabulary (0 to {size - 1})")
    return found


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
        framing = framing._replace(mark=target, marks=frozenset(known.ids.values()), asked=asked)
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
