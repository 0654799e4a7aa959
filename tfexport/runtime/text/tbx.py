"""Glossaries in TBX (ISO 30042), of the first and the second edition. The parser is expat.

A concept has terms in several languages. Each term of the source language is an entry, and the
terms of the target language are its alternatives, the preferred ones first. Terms that are marked
as deprecated, superseded, obsolete or not recommended are no targets.
"""

from dataclasses import dataclass
from xml.parsers import expat

from tfexport.errors import InputError, join_some, shown
from tfexport.runtime.text.glossary import LONGEST, EntryReader, Glossary, phrase_problem
from tfexport.runtime.text.language_codes import Code

MOST_BYTES = 64 << 20  # of a file
_MOST_LEVELS = 100
_PIECE = 1 << 20  # bytes that are parsed at a time
_ROOTS = ("martif", "tbx")
_CONCEPTS = ("termEntry", "conceptEntry")
_LANGUAGES = ("langSet", "langSec")
_TERMS = ("tig", "ntig", "termSec")
_STATUS = ("administrativeStatus", "normativeAuthorization")
_PREFERRED = ("preferred", "standardized")
_UNWANTED = ("deprecated", "superseded", "obsolete", "notrecommended")
_LANGUAGE = "http://www.w3.org/XML/1998/namespace lang"


@dataclass
class _Term:
    line: int
    text: str = ""
    status: str = ""

    @property
    def rank(self) -> int:
        """0 for preferred terms, 2 for unwanted ones."""
        status = self.status.lower().replace(" ", "").replace("-", "")
        if any(word in status for word in _UNWANTED):
            return 2
        return 0 if status.startswith(_PREFERRED) else 1


_Concept = list[tuple[str, list[_Term]]]  # codes of languages, each with its terms


def _terms(concept: _Concept, language: Code) -> list[_Term]:
    """The terms of the codes that fit a language best."""
    fits = [language.likeness(Code.of(code)) for code, _ in concept]
    best = max(fits, default=0)
    return [
        term
        for fit, (_, terms) in zip(fits, concept, strict=True)
        if best and fit == best
        for term in terms
    ]


def parse_tbx(content: bytes, source: str, target: str) -> Glossary:
    """Read the terms of two languages; other languages are left out.

    Args:
        content: of the file.
        source: code of a language; regions and other codes of it match.
        target: likewise.

    Raises:
        InputError: naming all lines that are wrong.
    """
    if len(content) > MOST_BYTES:
        raise InputError(f"the glossary has more than {MOST_BYTES:,} bytes")
    concepts = _Reader(content).concepts
    reader, pair = EntryReader(), (Code.of(source), Code.of(target))
    for concept in concepts:
        sources, targets = (_terms(concept, code) for code in pair)
        wanted = sorted((one for one in targets if one.rank < 2), key=lambda one: one.rank)
        good = list[str]()
        for term in wanted if sources else ():
            if (text := phrase_problem(_plain(term))) is None:
                good.append(_plain(term))
            else:
                reader.problem(term.line, f"the target {text}")
        for term in sources if good else ():
            reader.add(term.line, _plain(term), good, again=True)
    if reader.empty:
        known = dict.fromkeys(code for concept in concepts for code, _ in concept)
        codes = join_some([shown(code)[1:-1] for code in known], 12) or "none"
        if not all(any(code.likeness(Code.of(one)) for one in known) for code in pair):
            raise InputError(f"no terms from {source} to {target}; its languages: {codes}")
    return Glossary(reader.end(), (source, target))


def _plain(term: _Term) -> str:
    """A term without the line breaks of its markup."""
    return " ".join(term.text.split())


class _Reader:
    """Collects the concepts of a file."""

    def __init__(self, content: bytes) -> None:
        self.concepts = list[_Concept]()
        self._names = list[str]()
        self._languages = list[str]()
        self._term: _Term | None = None
        self._status: list[str] | None = None
        self._parser = parser = expat.ParserCreate(namespace_separator=" ")
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text
        parser.EntityDeclHandler = self._entity
        try:
            for place in range(0, len(content), _PIECE):
                parser.Parse(content[place : place + _PIECE], False)
            parser.Parse(b"", True)
        except expat.ExpatError as error:
            reason = expat.ErrorString(error.code)
            raise InputError(f"line {error.lineno}: not well-formed XML: {reason}") from None
        except InputError:
            raise
        except (LookupError, ValueError) as error:  # an encoding that Python does not have
            raise InputError(f"not XML: {str(error)[:200]}") from None

    @property
    def _line(self) -> int:
        return self._parser.CurrentLineNumber

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        name = name.rpartition(" ")[2]
        if not self._names and name not in _ROOTS:
            raise InputError(f"not TBX: its root is {shown(name)}, not martif or tbx")
        if len(self._names) >= _MOST_LEVELS:
            raise InputError(f"line {self._line}: more than {_MOST_LEVELS} elements in one another")
        self._names.append(name)
        if name in _CONCEPTS:
            self.concepts.append([])
        elif name in _LANGUAGES and self.concepts:
            code = attributes.get(_LANGUAGE, "").strip()
            if not code:
                raise InputError(f"line {self._line}: {name} without xml:lang")
            self.concepts[-1].append((code, []))
        elif name in _TERMS and self.concepts and self.concepts[-1]:
            self._term = _Term(self._line)
        elif name in _STATUS or (name == "termNote" and attributes.get("type") in _STATUS):
            self._status = []

    def _end(self, name: str) -> None:
        name = self._names.pop()
        if self._term is None:
            return
        if name in _TERMS:
            self.concepts[-1][-1][1].append(self._term)
            self._term = None
        elif self._status is not None and (name in _STATUS or name == "termNote"):
            self._term.status, self._status = "".join(self._status).strip(), None

    def _text(self, text: str) -> None:
        if self._status is not None:
            self._status.append(text)
        elif self._term is not None and "term" in self._names[-3:]:
            if len(self._term.text) > 4 * LONGEST:
                raise InputError(f"line {self._line}: a term has more than {LONGEST:,} bytes")
            self._term.text += text

    def _entity(self, name: str, *_: object) -> None:
        raise InputError(
            f"line {self._line}: declares the entity {shown(name)}; entities are not read"
        )
