"""Hugging Face's models that are not read: each with the reason, and where to go with it."""

from dataclasses import dataclass

from tfexport.errors import Message, Option

_PAGE = "(docs/modules.md)"
MODULE = f"export its code as a module of your own {_PAGE}"
OPTIMUM = "Optimum exports it to ONNX"
CTRANSLATE2 = "CTranslate2 converts it"


def told(text: str) -> Message:
    """A text as a message, in which ``MODULE`` names the option that does it."""
    first, *others = text.split(_PAGE)
    named = (Message("(", Option("module"), "; docs/modules.md)", other) for other in others)
    return Message(first, *named)


@dataclass(frozen=True)
class Unsupported:
    """A model that is not read.

    Attributes:
        title: as people call it.
        reason: a clause, "because …" without the word.
        ways: clauses that say where to go.
    """

    title: str
    reason: str
    ways: tuple[str, ...] = (MODULE,)

    def __str__(self) -> str:
        ways = "; ".join(self.ways)
        reason = f"{self.title}, which no layout reads: {self.reason}"
        return f"{reason}. {ways[0].upper()}{ways[1:]}."


_EXPERTS = "its feed-forward layers are mixtures of experts, chosen for each token by a router"
_N_GRAM = "its decoder predicts several tokens at a time"
_SPEECH = "it reads audio, and no layout reads anything but token ids"
_IMAGE = "its encoder reads images, and no layout reads anything but token ids"
_DECODER = "it is a decoder alone, and tfexport exports an encoder and a decoder"
_ENCODER = "it is an encoder alone, which generates nothing"

# By the ``model_type`` of config.json.
UNSUPPORTED = {
    "led": Unsupported("LED", "its encoder attends in windows and to global tokens"),
    "longt5": Unsupported(
        "LongT5", "its encoder attends in windows or through transient global tokens",
        (MODULE, OPTIMUM),
    ),
    "bigbird_pegasus": Unsupported(
        "BigBird-Pegasus", "its encoder attends to random blocks", (MODULE, OPTIMUM)
    ),
    "pegasus_x": Unsupported("Pegasus-X", "its encoder attends in blocks and to global tokens"),
    "prophetnet": Unsupported("ProphetNet", _N_GRAM),
    "xlm-prophetnet": Unsupported("XLM-ProphetNet", _N_GRAM),
    "nllb-moe": Unsupported("NLLB-MoE", _EXPERTS),
    "switch_transformers": Unsupported("Switch Transformers", _EXPERTS),
    "mvp": Unsupported("MVP", "it prepends prompts to the keys of every attention"),
    "t5gemma": Unsupported(
        "T5Gemma", "its layers are Gemma's: rotary, grouped and soft-capped attention",
        (MODULE, CTRANSLATE2),
    ),
    "t5gemma2": Unsupported(
        "T5Gemma 2", "its layers are Gemma's: rotary, grouped and soft-capped attention",
        (MODULE, CTRANSLATE2),
    ),
    "encoder-decoder": Unsupported(
        "an encoder-decoder of two models (such as BERT)",
        "the two halves compute differently", (MODULE, OPTIMUM),
    ),
    "whisper": Unsupported("Whisper", _SPEECH, (CTRANSLATE2, OPTIMUM, MODULE)),
    "speech_to_text": Unsupported("Speech2Text", _SPEECH, (MODULE, OPTIMUM)),
    "speech-encoder-decoder": Unsupported("a speech encoder-decoder", _SPEECH),
    "moonshine": Unsupported("Moonshine", _SPEECH),
    "seamless_m4t": Unsupported("SeamlessM4T", _SPEECH),
    "seamless_m4t_v2": Unsupported("SeamlessM4T v2", _SPEECH),
    "speecht5": Unsupported("SpeechT5", _SPEECH, (MODULE, OPTIMUM)),
    "vision-encoder-decoder": Unsupported(
        "a vision encoder-decoder (such as TrOCR or Donut)", _IMAGE, (MODULE, OPTIMUM)
    ),
    "trocr": Unsupported("TrOCR's decoder", _IMAGE, (MODULE, OPTIMUM)),
    "pix2struct": Unsupported("Pix2Struct", _IMAGE, (MODULE, OPTIMUM)),
    **{
        kind: Unsupported(f"a decoder-only language model ({kind})", _DECODER, (CTRANSLATE2,))
        for kind in (
            "gpt2", "gptj", "gpt_neox", "gpt_bigcode", "opt", "bloom", "codegen", "falcon", "mpt",
            "llama", "mistral", "mixtral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "phi",
            "phi3", "gpt_oss", "xglm",
        )
    },
    **{
        kind: Unsupported(f"an encoder-only model ({kind})", _ENCODER, (OPTIMUM,))
        for kind in (
            "bert", "roberta", "xlm-roberta", "distilbert", "electra", "albert", "camembert",
            "deberta-v2", "mpnet", "modernbert",
        )
    },
}  # fmt: skip
