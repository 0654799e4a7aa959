"""What is said in a subtitle: speeches, the labels of speakers, and what is heard."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

_TAG = r"<[^<>]{0,200}>\s{0,4}"
_POSITION = re.compile(r"\s*(?:\{\\[^{}]*\}\s*)*")  # where it is shown
_DASH = re.compile(rf"\s*(?:\{{\\[^{{}}]*\}}\s*|{_TAG}){{0,8}}(?:[-–—]|(?:>|&gt;){{2}})\s*(?=\S)")
# Who speaks: letters up to a colon, perhaps with how it is said: "TOM (whispering):".
_LABEL = re.compile(
    rf"(?P<before>\s*(?:{_TAG}){{0,4}})(?P<name>[^\W_](?:[\w.'’ -]{{0,38}}\w)?)"
    rf"(?P<after>(?:{_TAG}){{0,4}}\s?(?:[\[(][^\[\]()]{{1,40}}[\])])?:(?:{_TAG}){{0,4}}(?:\s+|\Z))"
)
# What is heard: in brackets, at either end of a line; in parentheses, on a line of its own.
_HEARD_FIRST = re.compile(rf"(\s*(?:{_TAG}){{0,4}}\[)([^\[\]\n]+)(\](?:{_TAG}){{0,4}}\s*)")
_HEARD_LAST = re.compile(rf"((?:{_TAG}){{0,4}}\[)([^\[\]\n]+)(\]\s*(?:{_TAG}){{0,4}})\Z")
_HEARD_ALONE = re.compile(rf"(\s*(?:{_TAG}){{0,4}}\()([^()\n]+)(\)\s*(?:{_TAG}){{0,4}})")
# One of these is in every cue of several speeches, or with something before its words.
_SIGN = re.compile(r"\A\s|[-–—:\[({<>&]")
_ENDS = ".!?…\"'”»)]>♪"
_MOST_WORDS = 3  # of a name that is not in capitals


@dataclass
class Speech:
    """Words of a subtitle that are a text of their own.

    Attributes:
        start: what is before them: a dash, the label of a speaker, a bracket. It is kept.
        text: the words, of one line or several.
        end: what is after them.
        joined: whether they begin on the line on which those before end.
    """

    start: str
    text: str
    end: str = ""
    joined: bool = False


def find_speakers(cues: Sequence[str]) -> frozenset[str]:
    """The labels of speakers that are not in capitals: those with which two lines begin."""
    counts = Counter(
        found["name"]
        for cue in cues
        for line in (cue.split("\n") if ":" in cue else ())
        if (found := _LABEL.match(line, _start_of_words(line)))
    )
    return frozenset(
        name
        for name, count in counts.items()
        if count > 1
        and len(words := name.split()) <= _MOST_WORDS
        and not any(word[0].islower() for word in words)
    )


def split_speeches(cue: str, speakers: frozenset[str]) -> list[Speech]:
    """The speeches of a cue.

    A speech begins with a dash after another one, or after the end of a sentence, and with the
    label of a speaker; what is heard is on its own.

    Args:
        cue: its lines.
        speakers: see ``find_speakers``.
    """
    if not _SIGN.search(cue):
        return [Speech("", cue)]
    speeches = list[Speech]()
    lines = cue.split("\n")
    dashes = sum(map(bool, map(_DASH.match, lines)))
    goes_on = False  # whether the words of the next line may belong to the last speech
    for line in lines:
        before = speeches[-1].text if speeches else "."
        dash = _DASH.match(line)
        if dash and (dashes > 1 or before.rstrip()[-1:] in _ENDS):
            start, begins = dash[0], True
        else:
            start, begins = _POSITION.match(line)[0] if not goes_on else "", False  # type: ignore[index]
        label = _label(line, len(start), speakers)
        begins = begins or bool(label)
        found = list(_parts(line[len(start) + len(label) :]))
        found[0].start = start + label + found[0].start
        if len(found) > 1 and found[0].end and not found[1].end:  # words after a sound
            spoken = _label(found[1].text, 0, speakers)
            found[1].start, found[1].text = spoken, found[1].text[len(spoken) :]
        if goes_on and not begins and not found[0].end:
            speeches[-1].text += f"\n{line if len(found) == 1 else found[0].text}"
            found = found[1:]
        speeches += found
        goes_on = not speeches[-1].end and bool(speeches[-1].text)
    return speeches


def _start_of_words(line: str) -> int:
    """The length of what is before the words of a line: a dash, a sound in brackets."""
    start = (_DASH.match(line) or _POSITION.match(line)).end()  # type: ignore[union-attr]
    heard = _HEARD_FIRST.match(line, start)
    return heard.end() if heard else start


def _label(line: str, place: int, speakers: frozenset[str]) -> str:
    """The label of a speaker at a place of a line; empty if there is none."""
    found = _LABEL.match(line, place)
    if found is None:
        return ""
    name = found["name"]
    capitals = name.isupper() and sum(map(str.isalpha, name)) > 1
    return found[0] if capitals or name in speakers else ""


def _parts(line: str) -> Iterator[Speech]:
    """The speeches of a line: sounds in brackets at its ends, and the words between them."""
    if alone := _HEARD_ALONE.fullmatch(line):
        yield _heard(alone)
        return
    joined = False
    if (first := _HEARD_FIRST.match(line)) and not line.startswith("(", first.end()):
        yield _heard(first)
        line, joined = line[first.end() :], True
    last = _HEARD_LAST.search(line)
    said = line[: last.start()] if last else line
    if said.strip() or not (joined or last):
        yield Speech("", said, joined=joined)
        joined = True
    if last:
        yield _heard(last, joined)


def _heard(found: re.Match[str], joined: bool = False) -> Speech:
    return Speech(found[1], found[2], found[3], joined)


def join_speeches(speeches: Sequence[Speech], texts: Sequence[str]) -> list[str]:
    """The lines of a cue.

    Args:
        speeches: of the cue.
        texts: their translations.
    """
    lines = list[str]()
    for speech, text in zip(speeches, texts, strict=True):
        made = _wrapped(text, speech.text.count("\n") + 1)
        made[0] = speech.start + made[0]
        made[-1] += speech.end
        if speech.joined:
            lines[-1] += made.pop(0)
        lines += made
    return lines


def _wrapped(text: str, lines: int) -> list[str]:
    """Divide a text into lines: those that it has, and the longest of them at spaces."""
    made = text.split("\n")
    while len(made) < lines:
        place = max(range(len(made)), key=lambda number: len(_shown(made[number])))
        again = _divided(made[place], 1 + lines - len(made) if len(made) == 1 else 2)
        if len(again) == 1:
            break
        made[place : place + 1] = again
    return made


def _shown(line: str) -> str:
    return re.sub(r"<[^<>]*>", "", line)


def _divided(text: str, lines: int) -> list[str]:
    """Divide a text into lines of about the same length, at spaces outside of tags."""
    shown = re.sub(r"<[^<>]*>", lambda tag: "\0" * len(tag[0]), text)
    seen = [0, *accumulate(character != "\0" for character in shown)]  # before each place
    spaces = [found.start() for found in re.finditer(" ", shown)]
    made, begin = list[str](), 0
    for line in range(1, lines):
        wanted = seen[begin] + (seen[-1] - seen[begin]) / (lines - line + 1)
        after = [place for place in spaces if place > begin]
        if not after:
            break
        cut = min(after, key=lambda place: abs(seen[place] - wanted))
        made.append(text[begin:cut])
        begin = cut + 1
    return [*made, text[begin:]]
