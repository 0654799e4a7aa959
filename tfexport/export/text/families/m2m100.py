"""M2M100's tokenizer: a SentencePiece model, a vocabulary of its pieces, languages behind it.

As in transformers, the languages' tokens are special only where the folder lists them as such;
elsewhere they are not found in text, and decoded text shows them.
"""

from tfexport.errors import TokenizerError
from tfexport.export.text.families.built import ModelTokenizers
from tfexport.export.text.families.codes import M2M100
from tfexport.export.text.families.folder import ModelFolder
from tfexport.export.text.families.pieces import (
    added_tokens,
    built_pieces,
    default_language,
    one_of_codes,
)
from tfexport.languages import Languages
from tfexport.runtime.text.piece_tokenizer import PieceTable

FILES = ("vocab.json", "sentencepiece.bpe.model")
_SPECIAL = {"bos": "<s>", "eos": "</s>", "sep": "</s>", "pad": "<pad>", "unk": "<unk>"}


def find_m2m100(folder: ModelFolder) -> ModelTokenizers:
    """The tokenizer of an M2M100 folder, for both sides.

    Raises:
        TokenizerError: a file is missing or unreadable, or they contradict each other.
    """
    folder.need(*FILES)
    codes = one_of_codes(folder, M2M100, "m2m100")
    vocabulary = folder.read_vocabulary("vocab.json")
    tokens = {f"__{code}__": len(vocabulary) + i for i, code in enumerate(codes)}
    added = added_tokens(folder, folder.special_tokens(_SPECIAL, ()), vocabulary)
    wrong = [token for token in added if tokens.get(token.content, token.id) != token.id]
    if wrong:
        raise TokenizerError(
            f"{folder.path}: the id of {wrong[0].content} is {wrong[0].id}, but "
            f"{tokens[wrong[0].content]} according to vocab.json, after which the languages come."
        )
    unknown = folder.named("unk", "<unk>") or "<unk>"
    if unknown not in vocabulary:
        raise TokenizerError(f"{folder.path / 'vocab.json'}: has no {unknown!r}.")
    clean: bool = folder.setting("clean_up_tokenization_spaces", False, bool)
    model = "sentencepiece.model"
    table = PieceTable(model, model, {**vocabulary, **tokens}, unknown, added, clean_up=clean)
    built = built_pieces(table, {model: folder.path / FILES[1]})
    languages = Languages(
        {code: tokens[f"__{code}__"] for code in codes},
        "before",
        "first",
        default_language(folder, "src_lang", "en", codes),
        default_language(folder, "tgt_lang", None, codes),
    )
    paths = tuple(folder.path / name for name in FILES)
    return ModelTokenizers(folder.path, built, built, paths, languages)
