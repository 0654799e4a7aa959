"""The content of a SentencePiece model: pieces with scores, and the rules of its normalization."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfexport.errors import TokenizerError
from tfexport.runtime.text.libraries import failures_as, missing_library, read_file
from tfexport.runtime.text.vocabulary import describe_foreign

UNIGRAM, BPE = 1, 2  # types of models
CONTROL, USER_DEFINED = 3, 4  # types of pieces


@dataclass(frozen=True)
class Pieces:
    """The content of a SentencePiece model.

    Attributes:
        pieces: by id: the piece, its score and its type.
        charsmap: the compiled rules of normalization; None if there are none.
        model_type: UNIGRAM, BPE or another.
        unknown: the id of the unknown piece.
    """

    pieces: list[tuple[str, float, int]]
    charsmap: bytes | None
    model_type: int
    unknown: int


def read_pieces(path: Path) -> Pieces:
    """Read a .model file.

    Raises:
        TokenizerError: it is none.
        MissingDependencyError: sentencepiece or protobuf is not installed.
    """
    try:
        from sentencepiece import sentencepiece_model_pb2 as messages
    except ImportError:
        raise missing_library(path, "sentencepiece") from None
    library: Any = messages  # made at run time, so without types
    proto = library.ModelProto()
    content = read_file(path)
    with failures_as(
        TokenizerError, lambda: f"{path}: {describe_foreign(path, 'a SentencePiece model')}"
    ):
        proto.ParseFromString(content)
    if not proto.pieces:
        raise TokenizerError(f"{path}: {describe_foreign(path, 'a SentencePiece model')}")
    return Pieces(
        [(piece.piece, piece.score, piece.type) for piece in proto.pieces],
        proto.normalizer_spec.precompiled_charsmap or None,
        proto.trainer_spec.model_type,
        proto.trainer_spec.unk_id,
    )
