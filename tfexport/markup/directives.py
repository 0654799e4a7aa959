"""The directives of each format that a catalog of messages names: ``c-format``, ``php-format``.

Source: GNU gettext's manual, "The Translator View of Programming Languages" and "Individual
Programming Languages", and for each the manual of the language's own formatting function.
"""

import re

_WIDTH = r"(?:\d{1,4}|\*(?:\d{1,2}\$)?)?"
_SIZE = rf"{_WIDTH}(?:\.{_WIDTH})?"
_LENGTH = r"(?:hh|h|ll|l|L|q|j|z|t)?"
_BRACES = r"\{\{|\}\}|\{[^{}\n]{0,200}(?:\{[^{}\n]{0,100}\}[^{}\n]{0,100})*\}"
# C11, 7.21.6.1, with POSIX's %1$d, ' and <PRId64>, which xgettext writes for macros.
_C = (
    rf"%(?:\d{{1,2}}\$)?[-+ #0'I]*{_SIZE}{_LENGTH}"
    r"(?:<[A-Za-z0-9]{1,20}>|[diouxXeEfFgGaAcCspSnm%])"
)
# https://docs.python.org/3/library/stdtypes.html#printf-style-string-formatting
_PYTHON = rf"%(?:\([^()\n]{{1,80}}\))?[-+ #0]*{_SIZE}[hlL]?[diouxXeEfFgGcrsa%]"
# https://docs.oracle.com/en/java/javase/21/docs/api/java.base/java/util/Formatter.html
_JAVA_PRINTF = (
    r"%(?:\d{1,2}\$|<)?[-#+ 0,(]*\d{0,4}(?:\.\d{1,4})?(?:[tT][A-Za-z]|[bBhHsScCdoxXeEfgGaAn%])"
)
# https://www.php.net/sprintf: a character after ' fills.
_PHP = r"%(?:\d{1,2}\$)?(?:[-+ 0]|'.)*\d{0,4}(?:\.\d{1,4})?[bcdeEfFgGhHosuxX%]"
_QT = r"%L?(?:n(?![^\W_])|\d{1,2})|%%"  # https://doc.qt.io/qt-6/qstring.html#arg
# https://docs.ruby-lang.org/en/3.3/format_specifications_rdoc.html
_RUBY = (
    rf"%\{{\w{{1,80}}\}}|%[-+ #0]*(?:<\w{{1,80}}>|\d{{1,2}}\$)?[-+ #0]*{_SIZE}"
    r"[bBdiouxXeEfgGaAcps%]"
)
# https://pkg.go.dev/fmt
_GO = r"%[-+# 0]*(?:\[\d{1,2}\])?(?:\d{1,4}|\*)?(?:\.(?:\d{1,4}|\*)?)?[vTtbcdoOqxXUeEfFgGspw%]"
# The format of a flag, without "-format", by its pattern.
DIRECTIVES: dict[str, re.Pattern[str]] = {
    name: re.compile(pattern)
    for names, pattern in {
        "c awk gcc-internal gfc-internal lua perl tcl elisp librep ycp d javascript": _C,
        "objc": rf"%#@\w{{1,80}}@|%@|%\d{{1,2}}\$@|{_C}",
        "python": _PYTHON,
        "python-brace rust": _BRACES,
        "perl-brace": r"\{\w{1,80}\}",
        "java": r"\{\d{1,3}(?:,[^{}\n]{0,100})?\}",
        "java-printf": _JAVA_PRINTF,
        "csharp": r"\{\{|\}\}|\{\d{1,3}(?:,-?\d{1,4})?(?::[^{}\n]{0,100})?\}",
        "php": _PHP,
        "qt qt-plural kde kde-kuit smalltalk": _QT,
        "ruby": _RUBY,
        "go": _GO,
        "sh": r"\$\{\w{1,80}\}|\$\w{1,80}",
        "boost": rf"%\|[^|\n]{{1,40}}\||%\d{{1,2}}%|{_C}",
        "object-pascal": rf"%(?:\d{{1,2}}:)?-?{_SIZE}[dueEfFgGnmpsxX%]",
        "lisp scheme": r"~[-+0-9,':@#vV]*(?:[A-Za-z%&~$|?*()\[\]{}<>^;]|\n)",
    }.items()
    for name in names.split()
}


def format_of(flags: list[str]) -> str | None:
    """The format that an entry's flags name; None for none, or one that is not known.

    Args:
        flags: such as ``["fuzzy", "c-format"]``.
    """
    named = (flag.removeprefix("possible-").removesuffix("-format") for flag in flags
             if flag.endswith("-format"))  # fmt: skip
    return next((name for name in named if name in DIRECTIVES), None)
