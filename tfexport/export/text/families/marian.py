"""Marian's tokenizer: two SentencePiece models and vocabularies of their pieces.

As in transformers, whether or not sacremoses is installed, no punctuation is normalised: its
tokenizer has the function, and never calls it.
"""

from collections.abc import Mapping
from dataclasses import replace

from tfexport.errors import TokenizerError
from tfexport.export.text.families.built import ModelTokenizers
from tfexport.export.text.families.folder import ModelFolder
from tfexport.export.text.families.pieces import added_tokens, built_pieces
from tfexport.languages import Languages
from tfexport.runtime.text.piece_tokenizer import PieceTable

FILES = ("source.spm", "target.spm", "vocab.json")
_SECOND = "target_vocab.json"
_SPECIAL = {"unk": "<unk>", "eos": "</s>", "pad": "<pad>"}
_NAMES = {"source.spm": "source.model", "target.spm": "target.model"}


def find_marian(folder: ModelFolder) -> ModelTokenizers:
    """The tokenizers of a Marian folder.

    Raises:
        TokenizerError: a file is missing or unreadable, or they contradict each other.
    """
    separate = folder.setting("separate_vocabs", False, bool)
    if folder.config.get("share_encoder_decoder_embeddings") is False and not separate:
        raise TokenizerError(
            f"{folder.path}: config.json has share_encoder_decoder_embeddings false, so each side "
            "has a separate vocabulary, but tokenizer_config.json does not set separate_vocabs."
        )
    names = [*FILES, *([_SECOND] if separate else [])]
    folder.need(*names)
    source = folder.read_vocabulary("vocab.json")
    target = folder.read_vocabulary(_SECOND) if separate else source
    unknown = folder.named("unk", "<unk>") or "<unk>"
    for name, vocabulary in (("vocab.json", source), (_SECOND, target)):
        if unknown not in vocabulary:
            raise TokenizerError(f"{folder.path / name}: has no {unknown!r}.")
    special = folder.special_tokens(_SPECIAL, ())
    added = added_tokens(folder, special, source)
    clean: bool = folder.setting("clean_up_tokenization_spaces", False, bool)
    joiner = "target.model" if separate else "source.model"  # as transformers joins
    tables = {
        "source": PieceTable("source.model", "source.model", source, unknown, added),
        "target": PieceTable("target.model", joiner, target, unknown, added),
    }
    tables = {
        side: replace(table, prefix=True, behind_special=" ", clean_up=clean)
        for side, table in tables.items()
    }
    models = {bundled: folder.path / name for name, bundled in _NAMES.items()}
    built = {
        side: built_pieces(table, models, f"{side}-pieces.json") for side, table in tables.items()
    }
    codes = {} if separate else _codes(source)
    paths = tuple(folder.path / name for name in names)
    languages = Languages(codes, None, "source") if codes else None
    return ModelTokenizers(folder.path, built["source"], built["target"], paths, languages)


def _codes(vocabulary: Mapping[str, int]) -> dict[str, int]:
    """Target languages to the ids of pieces such as ``>>fra<<``."""
    return {
        piece[2:-2]: number
        for piece, number in vocabulary.items()
        if piece.startswith(">>") and piece.endswith("<<") and len(piece) > 4
    }
