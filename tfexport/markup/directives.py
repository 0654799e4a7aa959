"""The directives of each format that a catalog of messages names: ``c-format``, ``php-format``.

Source: GNU gettext's manual, "The Translator View of Programming Languages" and "Individual
Programming Languages", and for each the manual of the language's own formatting function.
"""

import re
from collections.abc import Sequence

_WIDTH = r"(?:\d{1,4}|\*(?:\d{1,2}\$)?)?"
_SIZE = rf"{_WIDTH}(?:\.{_WIDTH})?"
_LENGTH = r"(?:hh|h|ll|l|L|q|j|z|t)?"
_BRACES = r"\{\{|\}\}|\{[^{}\n]{0,200}(?:\{[^{}\n]{0,100}\}[^{}\n]{0,100})*\}"
# C11, 7.21.6.1, with POSIX's %1$d, ' and <PRId64>, which xgettext writes for macros. A flag that is
# a space and a letter are a word more often than a directive: see ``DOUBTFUL``.
_C = (
    rf"%(?:\d{{1,2}}\$)?[-+#0'I]*{_SIZE}{_LENGTH}"
    r"(?:<[A-Za-z0-9]{1,20}>|[diouxXeEfFgGaAcCspSnm%])"
    rf"|% [-+#0'I]*{_SIZE}{_LENGTH}[diouxXeEfFgGaAcCsp](?![^\W_])"
)
# gcc/pretty-print.cc and the front ends' own letters; gfortran's are %C and %L.
_GCC = rf"%[<>'{{}}]|%[-+#q]*w?{_SIZE}{_LENGTH}[A-Za-z%@]"
# https://docs.python.org/3/library/stdtypes.html#printf-style-string-formatting
_PYTHON = (
    rf"%(?:\([^()\n]{{1,80}}\))?[-+#0]*{_SIZE}[hlL]?[diouxXeEfFgGcrsa%]"
    rf"|% [-+#0]*{_SIZE}[diouxXeEfFgGcrsa](?![^\W_])"
)
# https://docs.oracle.com/en/java/javase/21/docs/api/java.base/java/util/Formatter.html
_JAVA_PRINTF = (
    r"%(?:\d{1,2}\$|<)?[-#+0,(]*\d{0,4}(?:\.\d{1,4})?(?:[tT][A-Za-z]|[bBhHsScCdoxXeEfgGaAn%])"
)
# https://www.php.net/sprintf: a character after ' fills.
_PHP = r"%(?:\d{1,2}\$)?(?:[-+0]|'.)*\d{0,4}(?:\.\d{1,4})?[bcdeEfFgGhHosuxX%]"
_QT_PLURAL = r"%L?(?:n|\d{1,2})|%%"  # whose %n is the number, whatever follows it
_QT = r"%L?(?:n(?![^\W_])|\d{1,2})|%%"  # https://doc.qt.io/qt-6/qstring.html#arg
# https://docs.ruby-lang.org/en/3.3/format_specifications_rdoc.html
_RUBY = (
    rf"%\{{\w{{1,80}}\}}|%[-+#0]*(?:<\w{{1,80}}>|\d{{1,2}}\$)?[-+#0]*{_SIZE}"
    r"[bBdiouxXeEfgGaAcps%]"
)
# https://pkg.go.dev/fmt
_GO = r"%[-+#0]*(?:\[\d{1,2}\])?(?:\d{1,4}|\*)?(?:\.(?:\d{1,4}|\*)?)?[vTtbcdoOqxXUeEfFgGspw%]"
# The format of a flag, without "-format", by its pattern.
DIRECTIVES: dict[str, re.Pattern[str]] = {
    name: re.compile(pattern)
    for names, pattern in {
        "c awk tcl elisp librep ycp d javascript modula2 ocaml": _C,
        "gcc-internal gfc-internal": _GCC,
        "lua": rf"%q|{_C}",
        "perl": rf"%vd|{_C}",
        "objc": rf"%#@\w{{1,80}}@|%@|%\d{{1,2}}\$@|{_C}",
        "python": _PYTHON,
        "python-brace rust c++": _BRACES,
        "perl-brace": r"\{\w{1,80}\}",
        "java": r"\{\d{1,3}(?:,[^{}\n]{0,100})?\}",
        "java-printf": _JAVA_PRINTF,
        "csharp": r"\{\{|\}\}|\{\d{1,3}(?:,-?\d{1,4})?(?::[^{}\n]{0,100})?\}",
        "php": _PHP,
        "qt-plural": _QT_PLURAL,
        "qt kde kde-kuit smalltalk": _QT,
        "ruby": _RUBY,
        "go": _GO,
        "sh-printf": rf"%b|{_C}",
        "sh": r"\$\{\w{1,80}\}|\$\w{1,80}",
        "boost": rf"%\|[^|\n]{{1,40}}\||%\d{{1,2}}%|{_C}",
        "object-pascal": rf"%(?:\d{{1,2}}:)?-?{_SIZE}[dueEfFgGnmpsxX%]",
        "lisp scheme": r"~[-+0-9,':@#vV]*(?:[A-Za-z%&~$|?*()\[\]{}<>^;]|\n)",
    }.items()
    for name in names.split()
}
# A directive of C that has a space for its flag, and goes on as a word: "20% discount".
DOUBTFUL = re.compile(rf"(?<!%)% [-+#0'I]*{_SIZE}{_LENGTH}[diouxXeEfFgGaAcCsp](?=[^\W_])")
_OF_C = frozenset(name for name, each in DIRECTIVES.items() if "% [" in each.pattern)
# Names in texts of programs, of Laravel, Drupal, Symfony, PHP, Vue, wikis, Chrome's extensions and
# Mozilla's entities.
PROGRAM = "program"
DIRECTIVES[PROGRAM] = re.compile(
    r"(?<![^\s(\"'])(?:[:!$]|@(?::[\w.]{1,80}\.)?)[a-z_]\w{0,79}(?![\w:@.-]\S)"
    r"|\[\[ ?[a-z_][\w.]{0,79} ?\]\]"
    r"|(?<![\w%])%[A-Za-z_]\w{1,79}%(?![\w%])|(?<![\w$])\$[A-Za-z_]\w{1,79}\$(?![\w$])"
    r"|&[A-Za-z][\w.-]{0,79};|(?<!\w)__(?:[a-z][a-z0-9_]{1,76}|[A-Z][A-Z0-9_]{1,76})__(?!\w)"
)


# The sign before the letter of a menu's item that a key chooses: of Qt, KDE and Windows, of GTK.
_ACCELERATORS = {
    "&": re.compile(r"(?<![\w&])&(?=[^\W_])|(?<=[a-z])&(?=[a-z])"),
    "_": re.compile(r"(?<![\w_])_(?=[^\W\d_]+(?![\w_]))|(?<=\A[A-Z])_(?=[a-z]+\b)"
                    r"|(?<=\A[A-Z][a-z])_(?=[a-z]+\b)|(?<=\A[A-Z][a-z][a-z])_(?=[a-z]+\b)"),
}  # fmt: skip
_OF_QT = frozenset({"qt", "qt-plural", "kde", "kde-kuit"})


def accelerator(text: str, formats: Sequence[str]) -> int | None:
    """Where the sign is that is before the letter of an accelerator; None if there is no such sign.

    Args:
        text: of the message.
        formats: of its flags; those of Qt and KDE have ``&`` alone.
    """
    if "&" not in text and "_" not in text:
        return None
    signs = "&" if _OF_QT & {*formats} else "&_"
    places = [found.start() for sign in signs for found in _ACCELERATORS[sign].finditer(text)]
    return places[0] if len(places) == 1 else None


def formats_of(flags: list[str]) -> tuple[str, ...]:
    """The formats that an entry's flags name, of those that are known.

    Args:
        flags: such as ``["fuzzy", "c-format"]``; ``possible-c-format`` is a guess, and none.
    """
    named = (flag.removesuffix("-format") for flag in flags if flag.endswith("-format"))
    return tuple(name for name in named if name in DIRECTIVES)


def doubtful(text: str, formats: tuple[str, ...]) -> str | None:
    """A part of a message that its format may read as a directive, and a reader as a word.

    Args:
        text: of the message.
        formats: of its flags.
    """
    match = DOUBTFUL.search(text) if _OF_C & {*formats} else None
    return match[0] if match else None
