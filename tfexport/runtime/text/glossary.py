"""Glossaries: terms of one language, with the terms that translate them, in TSV and CSV.

The rules are those of DeepL for files of its glossaries: no header, one entry a line, no source
twice, no control characters, 10 MiB a file; and 1,000 bytes a phrase, of which DeepL takes 1,024.
"""

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tfexport.errors import InputError, join_problems, shown

Entries = dict[str, tuple[str, ...]]  # a phrase, and those of which one has to translate it
MOST_BYTES = 10 << 20  # of a file
MOST_ENTRIES = 100_000
LONGEST = 1000  # bytes of a phrase
MOST_TARGETS = 32  # alternatives of an entry
_MOST_LISTED = 20  # problems; the others are counted
_MOST_PROBLEMS = 1000  # after which reading ends
# Control characters, line breaks, halves of characters; and those that embed or override a
# direction, with which a phrase is not what it looks like.
_REFUSED = re.compile(
    r"(?P<control>[\x00-\x1f\x7f-\x9f\u2028\u2029])|(?P<half>[\ud800-\udfff])"
    r"|[\u202a-\u202e\u2066-\u2069]"
)


@dataclass(frozen=True)
class Glossary:
    """The terms of one pair of languages.

    Attributes:
        entries: in the order of the file.
        languages: codes of the source and the target, if the file names them.
    """

    entries: Entries
    languages: tuple[str, str] | None = None


class EntryReader:
    """Collects the entries of a file, and everything that is wrong with them."""

    def __init__(self) -> None:
        self.entries: Entries = {}
        self._lines: dict[str, int] = {}
        self._problems = list[str]()
        self._more = 0

    def add(self, line: int, source: str, targets: Sequence[str], *, again: bool = False) -> None:
        """Add an entry.

        Args:
            line: its line in the file, from 1.
            source: white space around it is removed, as around targets.
            targets: phrases of which one has to be in the translation, best first.
            again: whether a source that is there already gets these targets too; else it is a
                problem.
        """
        source, cleaned = source.strip(), [target.strip() for target in targets]
        found = len(self._problems) + self._more
        for side, phrase in (("source", source), *(("target", one) for one in cleaned)):
            if (text := phrase_problem(phrase)) is not None:
                self.problem(line, f"the {side} {text}")
        kept = self.entries.get(source, ()) if again else ()
        made = tuple(dict.fromkeys((*kept, *cleaned)))
        if len(made) > MOST_TARGETS:
            self.problem(line, f"{len(made)} targets of {shown(source)}; {MOST_TARGETS} at most")
        if source in self.entries and not again:
            self.problem(line, f"the source {shown(source)} is that of line {self._lines[source]}")
        if len(self.entries) >= MOST_ENTRIES and source not in self.entries:
            raise InputError(f"line {line}: more than {MOST_ENTRIES:,} entries")
        if len(self._problems) + self._more == found:
            self.entries[source] = made
            self._lines.setdefault(source, line)

    def problem(self, line: int, text: str) -> None:
        """Add a problem of a line.

        Raises:
            InputError: there are very many.
        """
        if len(self._problems) < _MOST_LISTED:
            self._problems.append(f"line {line}: {text}")
            return
        self._more += 1
        if self._more >= _MOST_PROBLEMS:
            self.end()

    @property
    def empty(self) -> bool:
        """Whether there is neither an entry nor a problem."""
        return not self.entries and not self._problems

    def end(self) -> Entries:
        """The entries.

        Raises:
            InputError: naming everything that is wrong, or that there is no entry.
        """
        if self._more:
            self._problems.append(f"and {self._more:,} more problems")
        if self._problems:
            raise InputError(join_problems("the glossary", self._problems))
        if not self.entries:
            raise InputError("the glossary has no entry")
        return self.entries


def phrase_problem(phrase: str) -> str | None:
    """The reason why a source or target cannot be part of a glossary, without its subject."""
    if not phrase:
        return "is empty"
    size = len(phrase.encode(errors="replace"))
    if size > LONGEST:
        return f"{shown(phrase[:40])} has {size:,} bytes; {LONGEST:,} at most"
    found = _REFUSED.search(phrase)
    if found is not None:
        code = f"U+{ord(found[0]):04X}"
        if found["control"]:
            return f"{shown(phrase)} has the control character {code}"
        if found["half"]:
            return f"{shown(phrase)} has half of a character, {code}"
        return f"{shown(phrase)} has {code}, which changes the direction in which it is read"
    return None


def parse_tsv(text: str, *, alternatives: bool = True) -> Glossary:
    """Read entries of which each is a line: source, tab, target.

    Args:
        text: empty lines are skipped.
        alternatives: whether more targets may follow, each after a tab.

    Raises:
        InputError: naming all lines that are wrong.
    """
    reader = EntryReader()
    for number, line in _lines(text):
        source, *targets = line.split("\t")
        if not targets:
            reader.problem(number, f"{shown(line)} has no tab between source and target")
        elif len(targets) > 1 and not alternatives:
            reader.problem(number, f"{len(targets)} tabs; an entry is a source, a tab, a target")
        else:
            reader.add(number, source, targets)
    return Glossary(reader.end())


def parse_csv(text: str) -> Glossary:
    """Read entries of which each is a row: source and target, or these and their languages.

    Languages are the same in all rows that have them.

    Raises:
        InputError: naming all lines that are wrong.
    """
    reader, languages = EntryReader(), dict[tuple[str, str], int]()
    for number, row in _rows(reader, text):
        if len(row) not in (2, 4):
            reader.problem(
                number, f"{len(row)} columns; there are 2 (source, target) or 4 (with languages)"
            )
            continue
        if len(row) == 4:
            pair = (row[2].strip().lower(), row[3].strip().lower())
            first = languages.setdefault(pair, number)
            if len(languages) > 1 and first == number:
                (other, begun), *_ = languages.items()
                texts = ["-".join(shown(code)[1:-1] for code in one) for one in (pair, other)]
                reader.problem(
                    number, f"is {texts[0]}, and line {begun} is {texts[1]}: a file has one pair"
                )
        reader.add(number, row[0], row[1:2])
    entries = reader.end()
    return Glossary(entries, next(iter(languages), None))


def decoded(content: bytes) -> str:
    """The text of a file, without its byte order mark.

    Raises:
        InputError: it is too large, or not UTF-8.
    """
    if len(content) > MOST_BYTES:
        raise InputError(f"the glossary has more than {MOST_BYTES:,} bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise InputError(f"line {line}: is not UTF-8") from None


def write_tsv(entries: Mapping[str, Sequence[str]]) -> str:
    """The entries as TSV; each with its targets."""
    return "\n".join("\t".join((source, *targets)) for source, targets in entries.items())


def size_of(entries: Mapping[str, Iterable[str]]) -> int:
    """The bytes of the entries as TSV."""
    return sum(
        len(part.encode()) + 1 for source, targets in entries.items() for part in (source, *targets)
    )


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines that are not empty, by their numbers; only a line feed ends one."""
    for number, line in enumerate(text.split("\n"), 1):
        line = line.removesuffix("\r")
        if line:
            yield number, line


def _rows(reader: EntryReader, text: str) -> Iterator[tuple[int, list[str]]]:
    """The rows of CSV that are not empty, each with its last line."""
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    while True:
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            reader.problem(max(rows.line_num, 1), f"is not CSV: {error}")
            return
        if row:
            yield rows.line_num, row
