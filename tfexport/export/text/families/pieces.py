"""Tokenizers with a SentencePiece model and another table of ids: Marian, M2M100, PLBart."""

from collections.abc import Mapping, Sequence

from tfexport.export.text.families.folder import ModelFolder
from tfexport.runtime.text.added_tokens import AddedToken


def added_tokens(
    folder: ModelFolder, special: Sequence[str], known: Mapping[str, int]
) -> list[AddedToken]:
    """The tokens that are found before a text is split.

    Args:
        folder: which may list some of them.
        special: all special tokens, in order; those without an id get the next ones.
        known: pieces to ids.
    """
    tokens = dict(folder.listed)
    ids = {token.content: number for number, token in tokens.items()}
    following = len({*known, *ids})
    for content in special:
        if content in ids:
            continue
        number = known.get(content)
        if number is None:
            number, following = following, following + 1
        ids[content] = number
        tokens[number] = AddedToken(content, number)
    names = {*special}
    return [
        AddedToken(t.content, t.id, t.lstrip, t.rstrip, t.single_word, t.content in names)
        for t in tokens.values()
    ]
