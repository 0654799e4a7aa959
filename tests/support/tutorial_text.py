"""An oracle: the tutorial's way from a sentence to its translation. Nothing of tfexport takes part.

Words are split by the tutorial's tokenizer, looked up with UNK_IDX as the default index, framed by
start and end token, decoded greedily for at most five tokens more than there are, and joined.
"""

from collections.abc import Callable

from tests.support import tutorial

UNK_IDX, PAD_IDX, BOS_IDX, EOS_IDX = 0, 1, 2, 3
SPECIALS = ["<unk>", "<pad>", "<bos>", "<eos>"]

Tokenize = Callable[[str], list[str]]


def make_model(source_size: int, target_size: int) -> tutorial.TutorialModel:
    """A model whose outputs differ, and that gives neither padding nor start tokens.

    A trained one gives neither too; the tutorial would print padding, and a bundle leaves it out.
    """
    model = tutorial.make(
        seed=38, scale=3.0, d_model=8, num_heads=2, encoder_layers=1, decoder_layers=1, d_ff=12,
        source_size=source_size, target_size=target_size,
    )  # fmt: skip
    model.generator.bias.data[[PAD_IDX, BOS_IDX]] = -100.0
    return model


def longest(words: list[str]) -> int:
    """New tokens at most, for the words of a source sentence."""
    return len(words) + 2 + 4  # its max_len counts the start token, which is not new


def translate(
    model: tutorial.TutorialModel,
    sentence: str,
    tokenize: Tokenize,
    source: list[str],
    target: list[str],
) -> str:
    """Translate one sentence, given the words of both sides in order of their ids."""
    words = tokenize(sentence)
    ids = {word: i for i, word in enumerate(source)}
    row = [BOS_IDX, *(ids.get(word, UNK_IDX) for word in words), EOS_IDX]
    tokens = tutorial.greedy(model, row, longest(words), BOS_IDX, EOS_IDX)
    joined = " ".join(target[token] for token in (BOS_IDX, *tokens, EOS_IDX))
    return joined.replace("<bos>", "").replace("<eos>", "").strip()
