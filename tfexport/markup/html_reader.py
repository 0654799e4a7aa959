"""HTML as tokens. The parser is turbohtml's tokenizer, which follows the HTML standard."""

import re
from collections.abc import Iterator, Sequence

from tfexport.errors import missing_dependency
from tfexport.markup.tokens import (
    BLADE,
    MOST_TAGS,
    NO_RULES,
    ONE_LINE,
    STATEMENT,
    WHITE,
    Flow,
    Kind,
    TagRules,
    Token,
    fold_kept,
    is_kept,
    match_tags,
    split_lines,
    too_many_tags,
)
from tfexport.runtime.text.sentences import UNSPACED


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Elements that end a sentence: all that a browser's own style sheet does not show within a line.
_BLOCKS = _names(
    "address article aside base blockquote body br button caption center col colgroup dd "
    "details dialog dir div dl dt fieldset figcaption figure footer form frame frameset h1 h2 "
    "h3 h4 h5 h6 head header hgroup hr html iframe legend li link main menu meta nav noframes "
    "noscript object ol optgroup option p param pre search section select source style "
    "summary table tbody td template textarea tfoot th thead title tr track ul video audio "
    "canvas xmp plaintext"
)
_VOID = _names(
    "area base basefont bgsound br col embed frame hr img input keygen link meta param source "
    "track wbr"
)
_HIDDEN = _names("script style template wbr")
# Elements that need no end tag, and the start tags that end them.
_ENDED_BY = {
    "p": _BLOCKS - {"br", "button", "object", "iframe", "noscript", "video", "audio", "canvas",
                    "template", "style", "link", "meta", "select", "option"},
    "li": frozenset({"li"}),
    "dt": frozenset({"dt", "dd"}), "dd": frozenset({"dt", "dd"}),
    "tr": frozenset({"tr", "tbody", "tfoot"}),
    "td": frozenset({"td", "th", "tr", "tbody", "tfoot"}),
    "th": frozenset({"td", "th", "tr", "tbody", "tfoot"}),
    "thead": frozenset({"tbody", "tfoot"}), "tbody": frozenset({"tbody", "tfoot"}),
    "option": frozenset({"option", "optgroup"}), "optgroup": frozenset({"optgroup"}),
}  # fmt: skip
_LINE = re.compile(r"\r\n|\r|\n")
_NUMBERED = re.compile(r"</?\d{1,4}>|<\d{1,4} ?/>|<(?:\d{2,}:)?\d{2}:\d{2}\.\d{3}>")
# Line breaks of texts of programs that end a sentence; _AFTER_END: of a text after the end of one.
_EMPTY_LINE = r"[ \t]*(?:\r\n|\r|\n)(?:[ \t]*(?:\r\n|\r|\n))+|(?<=[.!?:…])(?:\r\n|\r|\n)"
_LATER = re.compile(f"({_EMPTY_LINE})")
_AFTER_END = re.compile(rf"({_EMPTY_LINE}|\A(?:\r\n|\r|\n))")
# A program in PHP. The parser sees as many characters for private use, on as many lines.
_PHP = re.compile(r"<\?(?:php\b|=).*?(?:\?>|\Z)", re.DOTALL)
_PHP_BEGIN, _PHP_INSIDE, _PHP_END = "\ue200", "\ue201", "\ue202"
_HIDDEN_PHP = re.compile(f"({_PHP.pattern}|{_PHP_BEGIN}[^{_PHP_END}]*{_PHP_END})", re.DOTALL)
_ENDS = frozenset(".!?:…")
_SIGNS = re.compile(r"[<&%{@\r\n\0]")  # of tags, statements and lines; without any it is words
_UNFINISHED = re.compile(r"<[A-Za-z/!?]")


def read_html(text: str, rules: TagRules = NO_RULES) -> list[Token]:
    """Read HTML: a document, or any part of one.

    Args:
        text: its tokens, joined, are this text again.
        rules: for elements, besides those of HTML.

    Raises:
        InputError: there are too many tags.
        MissingDependencyError: turbohtml is not installed.
    """
    if text and not _SIGNS.search(text):
        return [Token("text", text, text=text)]
    tokens = list[Token]()
    for token in _of_programs(text, rules) if rules.program else _tokens(text, rules):
        if len(tokens) > MOST_TAGS:
            raise too_many_tags()
        tokens.append(token)
    match_tags(tokens, _ENDED_BY)
    folded = _apart(fold_kept(tokens))
    match_tags(folded, _ENDED_BY)
    folded = _fold_notes(folded)
    match_tags(folded, _ENDED_BY)
    return folded


def kept_element(text: str, rules: TagRules = NO_RULES) -> str | None:
    """The name of an element that a text begins and does not end, and whose content is kept."""
    tokens = [*_tokens(text, rules)]
    match_tags(tokens, _ENDED_BY)
    return next((token.name for token in tokens if token.keep and not token.closed), None)


def end_of(name: str, text: str, depth: int, rules: TagRules = NO_RULES) -> tuple[int, int]:
    """Where the elements of a name end in a text that is inside of them.

    Args:
        name: of the elements.
        text: HTML.
        depth: how many of them are around the beginning of the text.
        rules: for elements, besides those of HTML.

    Returns:
        The place after the last end tag, or that after the text, and how many are around it.
    """
    place = 0
    for token in _tokens(text, rules):
        place += len(token.raw)
        if token.name == name:
            depth += {"open": 1, "close": -1}.get(token.kind, 0)
        if not depth:
            break
    return place, depth


def _apart(tokens: Sequence[Token]) -> list[Token]:
    """End a sentence between elements that touch, as links of a menu do: they are two words."""
    made = list[Token]()
    last, ended = "", False  # the last character of a text, and whether an element ended after it
    place = 0  # of the start tag after that
    for token in tokens:
        if token.kind == "text" and token.text:
            if place and _is_spaced(token.text[0]):
                made.insert(place, Token("empty", "", "block"))
            ended, place, last = False, 0, token.text[-1]
        elif token.kind in ("open", "close") and token.flow == "inline":
            if token.kind == "close":
                ended, place = _is_spaced(last) or last in _ENDS, 0
            elif ended and not place:
                place = len(made)
        elif token.flow != "hidden":
            ended, place, last = False, 0, ""
        made.append(token)
    return made


def _is_spaced(character: str) -> bool:
    """Whether it is of a word in a script with spaces."""
    return character.isalnum() and not UNSPACED.match(character)


def _fold_notes(tokens: Sequence[Token]) -> list[Token]:
    """Keep a superscript after a word that has no letter, as the number of a note, as one tag."""
    made, place, before = list[Token](), 0, ""
    while place < len(tokens):
        token = tokens[place]
        inside = tokens[place : token.end] if token.name == "sup" and token.closed else ()
        if inside and before.isalnum() and _is_note(inside, tokens[token.end : token.end + 1]):
            made.append(Token("kept", "".join(one.raw for one in inside), "inline", token.name))
            place, before = token.end, ""
            continue
        if token.kind == "text" and token.text:
            before = token.text[-1]
        elif token.kind not in ("open", "close"):
            before = ""
        made.append(token)
        place += 1
    return made


def _is_note(inside: Sequence[Token], following: Sequence[Token]) -> bool:
    joined = "".join(one.text for one in inside)
    goes_on = any(one.kind == "text" and one.text[:1].isalnum() for one in following)
    return (
        not goes_on
        and not any(map(str.isalpha, joined))
        and all(one.flow != "block" for one in inside)
    )


def _of_programs(text: str, rules: TagRules) -> Iterator[Token]:
    """Tokens of a text of a program; see ``TagRules.program``."""
    last = ""
    longest_first = sorted({*rules.literals}, key=lambda each: (-len(each), each))
    literals = "".join(f"{re.escape(each)}|" for each in longest_first)
    for place, part in enumerate(re.split(rf"({literals}{_NUMBERED.pattern})", text)):
        if place % 2 and part in rules.literals:
            yield Token("text", part, text=part)
        elif place % 2:
            name = part.strip("</>")
            whole = part.endswith("/>") or ":" in part
            kind: Kind = "empty" if whole else "close" if part.startswith("</") else "open"
            yield Token(kind, part, "hidden" if ":" in part else "inline", name)
        else:
            for token in _tokens(part, rules):
                if token.kind == "text" and token.text:
                    yield from split_lines(token, _AFTER_END if last in _ENDS else _LATER)
                    last = token.text[-1]
                else:
                    yield token


def _tokens(text: str, rules: TagRules) -> Iterator[Token]:
    for token in _read_tokens(text, rules):
        if token.kind == "text" and "<?" in token.raw:
            yield from _programs(token)
        else:
            yield token


def _read_tokens(text: str, rules: TagRules) -> Iterator[Token]:
    pre, before = 0, ""
    for token in _raw_tokens(text, rules):
        if token.name == "pre":
            pre += {"open": 1, "close": -1}.get(token.kind, 0)
        before, parent = (token.name if token.kind == "open" else ""), before
        if parent == "noscript" and token.kind == "text":
            # The parser takes it for text, as a browser with scripts does.
            yield from _raw_tokens(token.raw, rules)
        elif pre > 0 and token.kind == "text" and "\n" in token.text:
            yield from split_lines(token, ONE_LINE)
        elif token.kind == "text" and ("%" in token.text or "{{" in token.text):
            for part in split_lines(token, STATEMENT):
                yield from _lines_of_blade(part)
        else:
            yield from _lines_of_blade(token)


def _lines_of_blade(token: Token) -> Iterator[Token]:
    """A text without the lines that are directives of Blade, such as ``@if ($a > 1)``."""
    if token.kind == "text" and "@" in token.text:
        yield from split_lines(token, BLADE)
    else:
        yield token


def _raw_tokens(text: str, rules: TagRules) -> Iterator[Token]:
    try:
        from turbohtml import TokenType, tokenize
    except ImportError:
        raise missing_dependency("reading HTML needs turbohtml", "markup") from None

    starts = [0, *(found.end() for found in _LINE.finditer(text))]
    last: Token | None = None
    begin = 0
    for found in tokenize(_hide_php(text)):
        # The parser drops what is no part of a document, such as "</>": it stays with the token
        # before.
        place = starts[found.line - 1] + found.col
        if last is None:
            place = 0
        else:
            last.raw = text[begin:place]
            yield last
        begin = place
        if found.type is TokenType.TEXT:
            last = Token("text", "", text=found.data or "")
        elif found.type is TokenType.START_TAG:
            last = _start(_name(found.tag, rules), dict(found.attrs or ()), rules)
        elif found.type is TokenType.END_TAG:
            name = _name(found.tag, rules)
            last = Token("close", "", _flow(name, rules), name)
        elif found.type is TokenType.DOCTYPE:
            last = Token("empty", "", "block")
        else:
            last = Token("empty", "", "hidden")
    if last is None:
        if text:
            yield Token("empty", text, "block")
        return
    last.raw = text[begin:]
    unfinished = _UNFINISHED.search(_hide_php(last.raw)) if last.kind == "text" else None
    if unfinished is not None:  # a tag that the end of the text cuts
        rest = last.raw[unfinished.start() :]
        last.raw = last.raw[: unfinished.start()]
        yield last
        yield Token("empty", rest, "block")
        return
    yield last


def _name(tag: str | None, rules: TagRules) -> str:
    """The name of an element, without the classes that WebVTT writes after it: ``<c.loud>``."""
    return (tag or "").partition("." if rules.program else " ")[0]


def _hide_php(text: str) -> str:
    """A page without its programs in PHP, which a parser of HTML takes for tags."""
    if re.search(f"[{_PHP_BEGIN}{_PHP_INSIDE}{_PHP_END}]", text):
        return text

    def hidden(program: re.Match[str]) -> str:
        inside = re.sub(r"[^\r\n]", _PHP_INSIDE, program[0][1:-1])
        return f"{_PHP_BEGIN}{inside}{_PHP_END}"

    return _PHP.sub(hidden, text)


def _programs(token: Token) -> Iterator[Token]:
    """A text without its programs in PHP; those that print are parts of its sentence."""
    for part in split_lines(token, _HIDDEN_PHP):
        if part.kind == "text":
            yield part
        elif part.raw.startswith("<?="):
            yield Token("kept", part.raw, "inline", "php", WHITE.sub(" ", part.raw))
        else:
            yield part


def _start(name: str, attributes: dict[str, str], rules: TagRules) -> Token:
    if name in _VOID:
        return Token("empty", "", _flow(name, rules), name)
    keep = is_kept(name, attributes, rules)
    return Token("open", "", _flow(name, rules), name, keep=keep)


def _flow(name: str, rules: TagRules) -> Flow:
    if name in rules.splitting:
        return "block"
    if name in rules.inline:
        return "inline"
    if name in _HIDDEN:
        return "hidden"
    return "block" if name in _BLOCKS else "inline"
