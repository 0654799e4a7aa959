"""How text is split into the words of a vocabulary."""

import re
from collections.abc import Callable

from tfexport.errors import TokenizerError, missing_dependency, shown

Splitter = Callable[[str], list[str]]

WHITESPACE = "whitespace"
BASIC_ENGLISH = "basic_english"
SPACY = "spacy:"  # in front of a language
KNOWN = f"{WHITESPACE}, {BASIC_ENGLISH} or {SPACY}LANGUAGE, such as {SPACY}de"

# torchtext 0.4 to 0.18, torchtext.data.utils; its last replacement, of white space by one space,
# changes nothing that is then split at white space.
_REPLACEMENTS = (
    ("'", " '  "),
    ('"', ""),
    (".", " . "),
    ("<br />", " "),
    (",", " , "),
    ("(", " ( "),
    (")", " ) "),
    ("!", " ! "),
    ("?", " ? "),
    (";", " "),
    (":", " "),
)


def find_splitter(name: str) -> Splitter:
    """The function from text to words that a name stands for.

    Args:
        name: "whitespace"; "basic_english", the tokenizer of torchtext; or "spacy:" and the code
            of a language, for spaCy's tokenizer of that language.

    Raises:
        TokenizerError: an unknown name, or a language that spaCy has no tokenizer for.
        MissingDependencyError: spaCy is needed, and is not installed.
    """
    if name == WHITESPACE:
        return str.split
    if name == BASIC_ENGLISH:
        return split_basic_english
    if name.startswith(SPACY):
        return _spacy_splitter(name.removeprefix(SPACY))
    raise TokenizerError(f"{shown(name)} is not a known way to split text; known are {KNOWN}")


def split_basic_english(text: str) -> list[str]:
    """Split as torchtext's ``basic_english`` does: lower case, punctuation apart or left out."""
    text = text.lower()
    for part, replacement in _REPLACEMENTS:
        text = text.replace(part, replacement)
    return text.split()


def _spacy_splitter(language: str) -> Splitter:
    name = SPACY + language
    # Only a code: spaCy imports the package that a longer name names.
    if re.fullmatch("[a-z]{2,3}", language) is None:
        raise TokenizerError(
            f"{shown(name)} names no language. After {SPACY} comes a code such as de, not the "
            "name of a pipeline; de_core_news_sm has the tokenizer of de"
        )
    try:
        import spacy
    except ImportError:
        need = f"splitting text as {name} needs the spacy library"
        raise missing_dependency(need, extra="spacy") from None
    try:
        tokenizer = spacy.blank(language).tokenizer
    except Exception as error:  # of whatever library the language needs
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise TokenizerError(f"{name}: spaCy has no such tokenizer here: {reason}") from None
    return lambda text: [token.text for token in tokenizer(text)]
