"""Glossaries that callers have stored: files of one folder, which several servers may share.

A glossary is a file named by its id. Its first line is what is known of it without its entries,
and each further line has the entries of one of its dictionaries. Files are written beside and
renamed, so a reader sees a whole one, and one writer at a time changes the folder.
"""

import errno
import json
import operator
import os
import re
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from tfexport.atomic import new_file
from tfexport.errors import ConfigError, OutputExistsError, join_some
from tfexport.locks import writing
from tfexport.runtime.terms import Terms
from tfexport.runtime.text.glossary import MOST_BYTES, size_of
from tfexport.runtime.text.language_codes import Code
from tfexport.serve import request_log
from tfexport.serve.failures import RequestError, busy, wrong

MOST_GLOSSARIES = 1000
MOST_OF_FOLDER = 1 << 30  # bytes of all
MOST_DICTIONARIES = 100  # of a glossary
MOST_ENTRIES = 20_000  # of a dictionary
_LONGEST_LINE = 4 * MOST_BYTES
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_LANGUAGE = re.compile("[a-z]{2,3}")
_SUFFIX = ".glossary"
_KEPT = 32  # dictionaries in memory
_WAIT = 30.0  # seconds for other servers of the folder; a busy one is kept from its turn
HOW = "who runs the server enables them by the setting glossaries, a folder"

# What reading a file raises that is no glossary: of a folder, of content.
_DAMAGED = (OSError, ValueError, TypeError, KeyError, RecursionError)

Result = TypeVar("Result")
Entries = Mapping[str, str]
Pair = tuple[str, str]  # codes of a source and a target language


@dataclass(frozen=True)
class GlossaryInfo:
    """A glossary without its entries.

    Attributes:
        id: its id, which is also the name of its file.
        name: as its maker called it.
        created: ISO 8601, in UTC.
        sizes: the number of entries of each dictionary, by its languages.
    """

    id: str
    name: str
    created: str
    sizes: Mapping[Pair, int]


@dataclass(frozen=True)
class StoredGlossary:
    """A glossary with the entries of all dictionaries."""

    id: str
    name: str
    created: str
    dictionaries: Mapping[Pair, Entries] = field(default_factory=dict)

    @property
    def info(self) -> GlossaryInfo:
        """Without the entries."""
        sizes = {pair: len(entries) for pair, entries in self.dictionaries.items()}
        return GlossaryInfo(self.id, self.name, self.created, sizes)

    def check(self) -> None:
        """Refuse what is too large, or has one phrase twice.

        Raises:
            RequestError: naming every limit that it exceeds.
            InputError: naming phrases that are the same but for spaces, with other targets.
        """
        problems = []
        if not self.name.strip():
            problems.append("name: is empty")
        if len(self.name.encode(errors="replace")) > 1024:
            problems.append("name: has more than 1,024 bytes")
        if len(self.dictionaries) > MOST_DICTIONARIES:
            problems.append(f"dictionaries: more than {MOST_DICTIONARIES}")
        for pair, entries in self.dictionaries.items():
            if len(entries) > MOST_ENTRIES:
                problems.append(
                    f"the dictionary {'-'.join(pair)}: more than {MOST_ENTRIES:,} entries"
                )
        if problems:
            raise wrong(problems)
        size = sum(
            size_of({source: (target,) for source, target in entries.items()})
            for entries in self.dictionaries.values()
        )
        if size > MOST_BYTES:
            raise RequestError(413, f"the glossary has {size:,} bytes; {MOST_BYTES:,} at most")
        for entries in self.dictionaries.values():
            Terms.of(entries.items())


class GlossaryFolder:
    """The glossaries of a folder; none without one."""

    def __init__(self, folder: Path | None) -> None:
        """Take a folder, which is made if it is not there.

        Raises:
            ConfigError: it is no folder in which files can be written.
        """
        self._folder, self._changing = folder, threading.Lock()
        self._kept = OrderedDict[tuple[str, Pair], tuple[Any, Entries]]()
        self._made = OrderedDict[tuple[tuple[str, ...], Pair], tuple[list[Entries], Terms]]()
        self._keeping = threading.Lock()
        if folder is None:
            return
        try:
            folder.mkdir(exist_ok=True)
            with writing(folder / "all"):
                pass
        except OutputExistsError:  # another server writes there at this moment
            pass
        except OSError as error:
            raise ConfigError(f"glossaries: {folder}: {error.strerror}; name a folder") from None

    @property
    def enabled(self) -> bool:
        """Whether there is a folder."""
        return self._folder is not None

    def listed(self) -> list[GlossaryInfo]:
        """All glossaries, the oldest first.

        Raises:
            RequestError: there is no folder.
        """
        found = []
        for path in self._paths():
            try:
                with path.open("rb") as file:
                    found.append(_read_info(path.stem, file))
            except FileNotFoundError:  # deleted meanwhile
                continue
            except _DAMAGED as error:  # the others are listed all the same
                _report(path, error)
        return sorted(found, key=lambda one: (one.created, one.id))

    def info(self, glossary: str) -> GlossaryInfo:
        """A glossary without its entries.

        Raises:
            RequestError: there is none with this id.
        """
        return self._read(glossary, _read_info)

    def entries(self, glossary: str, pair: Pair) -> Entries:
        """The entries of a dictionary.

        Raises:
            RequestError: there is no such glossary, or it has no such dictionary.
        """
        path = self._path(glossary)
        try:
            found = path.stat()
        except OSError:
            raise _unknown(glossary) from None
        state, key = (found.st_mtime_ns, found.st_size, found.st_ino), (glossary, pair)
        with self._keeping:
            kept = self._kept.get(key)
            if kept is not None and kept[0] == state:
                self._kept.move_to_end(key)
                return kept[1]
        entries = self._read(glossary, lambda _, file: _read_entries(file, pair))
        with self._keeping:
            self._kept[key] = state, entries
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return entries

    def terms(self, glossaries: Sequence[str], pair: Pair) -> Terms:
        """The entries of dictionaries of one pair; of equal sources that of the first counts.

        Raises:
            RequestError: there is no such glossary, or it has no such dictionary.
            InputError: two have one phrase with different translations, but for spaces.
        """
        found = [self.entries(glossary, pair) for glossary in glossaries]
        key = (tuple(glossaries), pair)
        with self._keeping:
            kept = self._made.get(key)
            # Entries that have not changed are the same objects.
            if kept is not None and all(map(operator.is_, kept[0], found)):
                self._made.move_to_end(key)
                return kept[1]
        entries = dict[str, str]()
        for one in reversed(found):
            entries |= one
        made = Terms.of(entries.items())
        with self._keeping:
            self._made[key] = found, made
            while len(self._made) > _KEPT:
                self._made.popitem(last=False)
        return made

    def create(self, name: str, dictionaries: Mapping[Pair, Entries]) -> GlossaryInfo:
        """Store a new glossary.

        Raises:
            RequestError: it is too large, there are too many, or there is no folder.
        """
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        made = StoredGlossary(
            str(uuid.uuid4()), name, now.replace("+00:00", "Z"), dict(dictionaries)
        )
        made.check()
        with self._writing():
            self._write(made, new=True)
        return made.info

    def change(
        self, glossary: str, change: Callable[[StoredGlossary], StoredGlossary]
    ) -> GlossaryInfo:
        """Replace a glossary by what a function makes of it.

        Raises:
            RequestError: there is none with this id, or its replacement is too large.
        """
        self._path(glossary)
        with self._writing():
            made = change(self._read(glossary, _read_all))
            made.check()
            self._write(made)
        return made.info

    def delete(self, glossary: str) -> None:
        """Delete a glossary.

        Raises:
            RequestError: there is none with this id.
        """
        path = self._path(glossary)
        with self._writing():
            try:
                path.unlink()
            except FileNotFoundError:
                raise _unknown(glossary) from None
            except OSError as error:
                raise _unusable(error) from error
        with self._keeping:
            for key in [key for key in self._kept if key[0] == glossary]:
                del self._kept[key]

    def _place(self) -> Path:
        if self._folder is None:
            raise RequestError(404, f"glossaries: this server keeps none; {HOW}")
        if not self._folder.is_dir():
            raise _unusable(FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)))
        return self._folder

    def _paths(self) -> list[Path]:
        return [
            path for path in self._place().glob(f"*{_SUFFIX}") if _ID.fullmatch(path.stem)
        ]  # fmt: skip

    def _path(self, glossary: str) -> Path:
        """The path of a glossary, of which only ids that are made here have one."""
        folder = self._place()
        if not _ID.fullmatch(glossary):
            raise _unknown(glossary)
        return folder / f"{glossary}{_SUFFIX}"

    def _read(self, glossary: str, read: Callable[[str, BinaryIO], Result]) -> Result:
        path = self._path(glossary)
        try:
            with path.open("rb") as file:
                return read(glossary, file)
        except FileNotFoundError:
            raise _unknown(glossary) from None
        except _DAMAGED as error:
            _report(path, error)
            raise RequestError(500, "the file of the glossary is damaged; see the log") from error

    def _write(self, made: StoredGlossary, *, new: bool = False) -> None:
        folder = self._place()
        content = _content(made)
        sizes = list(map(_size, self._paths()))
        if new and len(sizes) >= MOST_GLOSSARIES:
            raise RequestError(456, f"there are {len(sizes):,} glossaries, as many as are allowed")
        if sum(sizes) + len(content) > MOST_OF_FOLDER:
            raise RequestError(456, f"all glossaries have {MOST_OF_FOLDER:,} bytes at most")
        try:
            with new_file(folder / f"{made.id}{_SUFFIX}", force=True) as path:
                path.write_bytes(content)
        except OSError as error:
            raise _unusable(error) from error

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Exclude other writers, in this process and others."""
        end, folder = time.monotonic() + _WAIT, self._place()
        with self._changing:
            while True:
                lock = writing(folder / "all")
                try:
                    lock.__enter__()
                    break
                except OutputExistsError:
                    if time.monotonic() > end:
                        raise busy("glossaries: another server changes them", 1.0) from None
                    time.sleep(0.005)
                except OSError as error:
                    raise _unusable(error) from error
            try:
                yield
            finally:
                lock.__exit__(None, None, None)


def merged(
    glossary: StoredGlossary,
    dictionaries: Mapping[Pair, Entries],
    name: str | None = None,
    *,
    fresh: bool = False,
) -> StoredGlossary:
    """A glossary with more entries; those with a source that is there replace it.

    Args:
        glossary: as it is.
        dictionaries: the entries by languages.
        name: its new name; None to keep it.
        fresh: whether dictionaries of these languages lose the entries that they have.
    """
    made = dict(glossary.dictionaries)
    for pair, entries in dictionaries.items():
        before = {} if fresh else made.get(pair, {})
        made[pair] = {**before, **entries}
    return replace(glossary, name=glossary.name if name is None else name, dictionaries=made)


def without(glossary: StoredGlossary, pair: Pair) -> StoredGlossary:
    """A glossary without one of its dictionaries.

    Raises:
        RequestError: there is no such one.
    """
    if pair not in glossary.dictionaries:
        raise NoDictionaryError(glossary.dictionaries, pair)
    kept = {own: entries for own, entries in glossary.dictionaries.items() if own != pair}
    return replace(glossary, dictionaries=kept)


class NoDictionaryError(RequestError):
    """A glossary has no dictionary of the requested languages."""

    def __init__(self, known: Iterable[Pair], pair: Pair) -> None:
        listed = join_some(["-".join(own) for own in known], 12) or "none"
        super().__init__(404, f"no dictionary {'-'.join(pair)} in the glossary; it has {listed}")


def pair_of(source: str, target: str) -> Pair:
    """Codes of two languages without regions and scripts, as glossaries have them.

    Raises:
        RequestError: naming what is no code.
    """
    codes = (Code.of(source).language, Code.of(target).language)
    named = zip(("source_lang", "target_lang"), (source, target), codes, strict=True)
    problems = [
        f"{name}: {given[:40]!r} is not the code of a language"
        for name, given, code in named
        if not _LANGUAGE.fullmatch(code)
    ]
    if problems:
        raise wrong(problems)
    return codes


def _unknown(glossary: str) -> RequestError:
    return RequestError(404, f"no glossary {glossary[:60]!r}")


def _unusable(error: OSError) -> RequestError:
    """The error for a folder in which nothing can be read or written, such as on a full disk."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    request_log.write("glossaries", level="error", error=str(error)[:200])
    return RequestError(
        507 if full else 503,
        f"glossaries: the server's folder cannot be used: {error.strerror}; tell who runs it",
    )


def _size(path: Path) -> int:
    """The bytes of a file; 0 of one that is deleted meanwhile."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _report(path: Path, error: Exception) -> None:
    request_log.write("glossary", level="error", file=path.name, error=str(error)[:200])


def _content(made: StoredGlossary) -> bytes:
    pairs = list(made.dictionaries)
    head = {
        "name": made.name,
        "created": made.created,
        "dictionaries": [[*pair, len(made.dictionaries[pair])] for pair in pairs],
    }
    lines = [head, *(made.dictionaries[pair] for pair in pairs)]
    return b"".join(json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in lines)


def _read_info(glossary: str, file: BinaryIO) -> GlossaryInfo:
    head = json.loads(file.readline(_LONGEST_LINE))
    try:
        sizes = {(source, target): int(size) for source, target, size in head["dictionaries"]}
        return GlossaryInfo(glossary, str(head["name"]), str(head["created"]), sizes)
    except (KeyError, TypeError) as error:
        raise ValueError(f"its first line lacks {error}") from None


def _read_entries(file: BinaryIO, pair: Pair) -> Entries:
    info = _read_info("", file)
    for own in info.sizes:
        line = file.readline(_LONGEST_LINE)
        if own == pair:
            return _entries(line)
    raise NoDictionaryError(info.sizes, pair)


def _read_all(glossary: str, file: BinaryIO) -> StoredGlossary:
    info = _read_info(glossary, file)
    found = {pair: _entries(file.readline(_LONGEST_LINE)) for pair in info.sizes}
    return StoredGlossary(glossary, info.name, info.created, found)


def _entries(line: bytes) -> Entries:
    found = json.loads(line)
    if not isinstance(found, dict):
        raise ValueError("a dictionary is no object")
    return {str(source): str(target) for source, target in found.items()}
