"""PLBart's tokenizer: a SentencePiece model whose ids are moved as fairseq does."""

from tfexport.errors import TokenizerError
from tfexport.export.text.families.built import ModelTokenizers
from tfexport.export.text.families.codes import PLBART
from tfexport.export.text.families.folder import ModelFolder
from tfexport.export.text.families.pieces import built_pieces, default_language, one_of_codes
from tfexport.export.text.families.sentencepiece_file import read_pieces
from tfexport.languages import Languages
from tfexport.runtime.text.added_tokens import AddedToken
from tfexport.runtime.text.piece_tokenizer import PieceTable

FILE = "sentencepiece.bpe.model"
_FIRST = ("<s>", "<pad>", "</s>", "<unk>")


def find_plbart(folder: ModelFolder) -> ModelTokenizers:
    """The tokenizer of a PLBart folder, for both sides.

    Raises:
        TokenizerError: a file is missing or unreadable, or they contradict each other.
    """
    folder.need(FILE)
    codes = one_of_codes(folder, PLBART, "base")
    pieces = read_pieces(folder.path / FILE).pieces
    tokens = [f"__{code}__" for code in codes]
    behind = [*tokens, *(["<mask>"] if codes == PLBART["base"] else [])]
    fixed = {piece: i for i, piece in enumerate(_FIRST)}
    fixed |= {token: len(pieces) + 1 + i for i, token in enumerate(behind)}
    special = folder.special_tokens(
        {"bos": "<s>", "eos": "</s>", "sep": "</s>", "cls": "<s>", "unk": "<unk>",
         "pad": "<pad>", "mask": "<mask>"}, tokens,
    )  # fmt: skip
    listed = [values["content"] for values in folder.listed.values()]
    unknown = [token for token in (*special, *listed) if token not in (*fixed, "<mask>")]
    if unknown:
        raise TokenizerError(
            f"{folder.path}: {unknown[0]!r} is a token that PLBart's tokenizer does not have."
        )
    table = {piece: i + 1 for i, (piece, _, _) in enumerate(pieces) if i}
    # The languages of programs have no mask: it is found in text, and unknown.
    found = sorted(dict.fromkeys((*special, *tokens)), key=lambda token: token == "<unk>")
    added = [AddedToken(token, fixed.get(token, fixed["<unk>"])) for token in found]
    model = "sentencepiece.model"
    clean: bool = folder.setting("clean_up_tokenization_spaces", True, bool)
    written = PieceTable(
        model, model, {**table, **fixed}, "<unk>", added, joined="text", clean_up=clean
    )
    built = built_pieces(written, {model: folder.path / FILE})
    default = "en_XX" if codes == PLBART["multi"] else None
    languages = Languages(
        {code: fixed[f"__{code}__"] for code in codes},
        "after",
        "start",
        default_language(folder, "src_lang", default, codes),
        default_language(folder, "tgt_lang", None, codes),
    )
    return ModelTokenizers(folder.path, built, built, (folder.path / FILE,), languages)
