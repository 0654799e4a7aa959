"""What Whisper's own way of decoding needs to know of a model."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tfexport.errors import shown
from tfexport.json_checks import Check, every, integer, list_of, of_type, one_of, or_null, record

TASKS = ("transcribe", "translate")
# The codes of languages, each with a name.
_NAMES = (
    "en:english zh:chinese de:german es:spanish ru:russian ko:korean fr:french ja:japanese "
    "pt:portuguese tr:turkish pl:polish ca:catalan nl:dutch ar:arabic sv:swedish it:italian "
    "id:indonesian hi:hindi fi:finnish vi:vietnamese he:hebrew uk:ukrainian el:greek ms:malay "
    "cs:czech ro:romanian da:danish hu:hungarian ta:tamil no:norwegian th:thai ur:urdu "
    "hr:croatian bg:bulgarian lt:lithuanian la:latin mi:maori ml:malayalam cy:welsh sk:slovak "
    "te:telugu fa:persian lv:latvian bn:bengali sr:serbian az:azerbaijani sl:slovenian "
    "kn:kannada et:estonian mk:macedonian br:breton eu:basque is:icelandic hy:armenian "
    "ne:nepali mn:mongolian bs:bosnian kk:kazakh sq:albanian sw:swahili gl:galician "
    "mr:marathi pa:punjabi si:sinhala km:khmer sn:shona yo:yoruba so:somali af:afrikaans "
    "oc:occitan ka:georgian be:belarusian tg:tajik sd:sindhi gu:gujarati am:amharic "
    "yi:yiddish lo:lao uz:uzbek fo:faroese ht:haitian_creole ps:pashto tk:turkmen nn:nynorsk "
    "mt:maltese sa:sanskrit lb:luxembourgish my:myanmar bo:tibetan tl:tagalog mg:malagasy "
    "as:assamese tt:tatar haw:hawaiian ln:lingala ha:hausa ba:bashkir jw:javanese "
    "su:sundanese yue:cantonese "
    # Other names of some.
    "my:burmese ca:valencian nl:flemish ht:haitian lb:letzeburgesch ps:pushto pa:panjabi "
    "ro:moldavian ro:moldovan si:sinhalese es:castilian zh:mandarin"
)
TOKEN_SECONDS = 0.02  # that a timestamp token counts, and a position of the encoder
FRAME_SECONDS = 0.01  # of a frame of features
STRIDE = 2  # frames of a position of the encoder


def _pairs() -> Iterator[tuple[str, str]]:
    for pair in _NAMES.split():
        code, _, name = pair.partition(":")
        yield code, name.replace("_", " ")


_CODES = {name: code for code, name in _pairs()}
_NAME_OF = dict(reversed([*_pairs()]))  # the first name of each
_TAG = re.compile(r"([a-z]{2,3})(?:[-_][a-z0-9]{2,8})+")  # of a language, with more behind it


def language_code(language: str) -> str:
    """The code of a language that is given as a token, a code or a name; else what is given.

    Of a tag with a region or a script, such as en-US or zh_Hant, the language counts.
    """
    text = language.lower().removeprefix("<|").removesuffix("|>")
    tag = _TAG.fullmatch(text)
    if tag is not None and tag[1] in _NAME_OF:
        return tag[1]
    return _CODES.get(text, text)


def language_name(code: str) -> str:
    """The name of a language, or its code, if it has no name here."""
    return _NAME_OF.get(code, code)


@dataclass(frozen=True)
class Speech:
    """The settings of Whisper's way of decoding, from the files of a model.

    Attributes:
        languages: language code to the id of its token; empty for a model of English alone.
        tasks: task to the id of its token; empty for a model of English alone.
        no_timestamps: the id of the token for a text without timestamps; the ids of timestamps
            come after it, and the one before it stands for no speech.
        language: of rows whose caller names none; None if it is detected.
        task: of rows whose caller names none.
        previous: the id before the text of a prompt or of an earlier window; None for none.
        most_initial: the largest first timestamp, counted from the first; None for any.
        positions: of the decoder, the most tokens of a row with the start token.
        max_new_tokens: of a window, if the files limit these, and not all tokens.
        condition_on_previous: whether the files ask for windows that see the text before them; None
            if they do not say.
        compression_ratio_threshold: above it a window is decoded again; None for any.
        logprob_threshold: below it a window is decoded again; None for any.
        no_speech_threshold: above it a window is silence; None for any.
        alignment_heads: layer and head of attention that follows the words; None if unknown.
        median_filter_width: positions by which that attention is smoothed.
    """

    no_timestamps: int
    positions: int
    languages: dict[str, int] = field(default_factory=dict)
    tasks: dict[str, int] = field(default_factory=dict)
    language: str | None = None
    task: str = "transcribe"
    previous: int | None = None
    most_initial: int | None = None
    max_new_tokens: int | None = None
    condition_on_previous: bool | None = None
    compression_ratio_threshold: float | None = None
    logprob_threshold: float | None = None
    no_speech_threshold: float | None = None
    alignment_heads: list[list[int]] | None = None
    median_filter_width: int = 7

    @property
    def multilingual(self) -> bool:
        """Whether a row starts with tokens for its language and its task."""
        return bool(self.languages)

    @property
    def first_timestamp(self) -> int:
        """The id of the first timestamp, of 0 s."""
        return self.no_timestamps + 1

    @property
    def no_speech(self) -> int:
        """The id of the token for no speech."""
        return self.no_timestamps - 1

    @property
    def ids(self) -> list[int]:
        """The ids of all its special tokens, without those of timestamps."""
        previous = [] if self.previous is None else [self.previous]
        return [
            *self.languages.values(), *self.tasks.values(), self.no_timestamps, self.no_speech,
            *previous,
        ]  # fmt: skip


_ID = integer(0)
_FLAG = or_null(of_type("true or false", bool))
_NUMBER = or_null(of_type("a number", int, float))

SPEECH: Check = record(
    {
        "no_timestamps": integer(1),
        "positions": integer(4, 1 << 20),
        "languages": every(_ID),
        "tasks": every(_ID),
        "language": or_null(of_type("a language code", str)),
        "task": one_of(*TASKS),
        "previous": or_null(_ID),
        "most_initial": or_null(_ID),
        "max_new_tokens": or_null(integer(1)),
        "condition_on_previous": _FLAG,
        "compression_ratio_threshold": _NUMBER,
        "logprob_threshold": _NUMBER,
        "no_speech_threshold": _NUMBER,
        "alignment_heads": or_null(list_of(list_of(_ID))),
        "median_filter_width": integer(1, 1001),
    }
)


def find_contradictions(
    values: Mapping[str, Any], size: int, eos: int, inputs: list[Mapping[str, Any]]
) -> Iterator[str]:
    """Find contradictions between settings whose values are of the right types.

    Args:
        values: the values of a manifest's key ``speech``.
        size: of the target vocabulary.
        eos: the end token.
        inputs: of the module, as the manifest has them.
    """
    first = values["no_timestamps"] + 1
    if first >= size:
        yield f"speech.no_timestamps: {first - 1} leaves no timestamps in a vocabulary of {size}"
    if not 0 < eos < first:
        yield f"special_ids.eos: {eos} is not between text and timestamps, which begin at {first}"
    named = {f"languages.{shown(k)[1:-1]}": v for k, v in values["languages"].items()}
    named |= {f"tasks.{shown(k)[1:-1]}": v for k, v in values["tasks"].items()}
    for name, number in {**named, "previous": values["previous"] or 0}.items():
        if number >= size:
            yield (
                f"speech.{name}: {number} is not an id of the target vocabulary (0 to {size - 1})"
            )
    if values["languages"] and set(values["tasks"]) != set(TASKS):
        yield f"speech.tasks: not those of a model of languages: {', '.join(TASKS)}"
    if values["language"] is not None and values["language"] not in values["languages"]:
        yield f"speech.language: {shown(values['language'])} is not one of the languages"
    if any(len(pair) != 2 for pair in values["alignment_heads"] or ()):
        yield "speech.alignment_heads: a head is not a pair of layer and head"
    if values["median_filter_width"] % 2 != 1:
        yield f"speech.median_filter_width: {values['median_filter_width']} is not odd"
    axes = [tensor["axes"] for tensor in inputs]
    if len(axes) != 1 or len(axes[0]) != 3 or not all(isinstance(n, int) for n in axes[0][1:]):
        yield "speech: the module does not take one input of frames of a fixed number"
    elif axes[0][2] % STRIDE or not axes[0][2]:
        yield f"speech: {axes[0][2]} frames are not a multiple of {STRIDE}"
