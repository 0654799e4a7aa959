"""How sounds are transcribed, and what comes of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypedDict

from tfexport.errors import ConfigError, Message, Option, Problem, join_problems, shown
from tfexport.json_checks import Check, integer, list_of, of_type, one_of
from tfexport.runtime.options import unknown_option
from tfexport.speech import TASKS, Speech, language_code, language_name

SUBJECT = "transcribe"
_NUMBER = of_type("a number", int, float)
_MOST = 1024  # temperatures, and rows of a batch
# Options of which doubtful windows are decoded again at higher temperatures; the thresholds are
# those of Radford et al. 2022, with the ratio of tokens instead of text.
FALLBACK: Mapping[str, Any] = {
    "temperature": (0.0, 0.2, 0.4, 0.6, 0.8, 1.0), "compression_ratio_threshold": 1.35,
    "logprob_threshold": -1.0, "no_speech_threshold": 0.6,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TranscriptionOptions:
    """Options of ``transcribe``; a value of None is the model's own.

    Attributes:
        language: of all sounds, as a code or a name; None detects that of each, unless the model's
            files name one.
        task: "transcribe", or "translate" into English.
        timestamps: decode timestamps, at which sounds are cut into segments and windows, as by
            default. Without them a sound has one window.
        prompt: text, or ids without special tokens, that comes before each window, for its names
            and its style.
        condition_on_previous: decode each window after the text of those before it.
        prompt_every_window: put the prompt before that text in every window; else the prompt is
            the first part of that text.
        word_times: find the times of words, by the attention of the model.
        beam_size: hypotheses that are followed at temperature 0; 1 for greedy search.
        temperature: of sampling, 0 for greedy search; or several, of which each further one is
            tried where a window misses a threshold.
        compression_ratio_threshold: a window is repetitive above it. It is that of tokens, of
            which 1.35 is usual.
        logprob_threshold: a window is doubtful below this mean log-probability.
        no_speech_threshold: a doubtful window is left out as silence above this probability.
        seed: of sampling.
        batch_size: windows, of different sounds, that are decoded together.
    """

    language: str | None = None
    task: str | None = None
    timestamps: bool | None = None
    prompt: str | Sequence[int] | None = None
    condition_on_previous: bool | None = None
    prompt_every_window: bool = False
    word_times: bool = False
    beam_size: int | None = None
    temperature: float | Sequence[float] = 0.0
    compression_ratio_threshold: float | None = None
    logprob_threshold: float | None = None
    no_speech_threshold: float | None = None
    seed: int = 0
    batch_size: int = 8

    def __post_init__(self) -> None:
        checks: dict[str, Check] = {
            "language": of_type("a language", str),
            "task": one_of(*TASKS),
            "timestamps": of_type("true or false", bool),
            "condition_on_previous": of_type("true or false", bool),
            "prompt_every_window": of_type("true or false", bool),
            "word_times": of_type("true or false", bool),
            "beam_size": integer(1, _MOST),
            "compression_ratio_threshold": _NUMBER,
            "logprob_threshold": _NUMBER,
            "no_speech_threshold": _NUMBER,
            "seed": integer(0, 2**64 - 1),
            "batch_size": integer(1, _MOST),
        }
        problems = [
            Problem(None, text)
            for name, check in checks.items()
            if getattr(self, name) is not None
            for text in check(name, getattr(self, name))
        ]
        if self.prompt is not None and not isinstance(self.prompt, str):
            problems += [
                Problem(None, text) for text in list_of(integer(0))("prompt", [*self.prompt])
            ]
        values = self.temperatures
        if not 0 < len(values) <= _MOST or not all(_is_temperature(value) for value in values):
            text = f" {shown(self.temperature)} is not a number from 0 to 100, or several"
            problems.append(Problem(None, Message(Option("temperature"), text)))
        if problems:
            raise ConfigError(join_problems(SUBJECT, problems))

    @property
    def temperatures(self) -> tuple[Any, ...]:
        """All temperatures, in the order in which they are tried."""
        given = self.temperature
        return tuple(given) if isinstance(given, list | tuple) else (given,)

    def resolved(self, speech: Speech, beam_size: int = 1) -> "WindowOptions":
        """The options for one model.

        Args:
            speech: its settings.
            beam_size: that of its own files.

        Raises:
            ConfigError: the model has no such language or task, or options contradict each other.
        """
        problems = [*self._language_problems(speech)]
        code = None if self.language is None else language_code(self.language)
        task = speech.task if self.task is None else self.task
        ratio, logprob, silence = (
            getattr(speech, name) if getattr(self, name) is None else getattr(self, name)
            for name in ("compression_ratio_threshold", "logprob_threshold", "no_speech_threshold")
        )
        if silence is not None and logprob is None:
            text = Message(Option("no_speech_threshold"), " needs ", Option("logprob_threshold"))
            problems.append(Problem(None, text))
        condition = self.condition_on_previous
        if condition is None:
            condition = bool(speech.condition_on_previous)
        if self.prompt_every_window and not condition:
            text = Message(
                Option("prompt_every_window"), " needs ", Option("condition_on_previous")
            )
            problems.append(Problem(None, text))
        if condition and speech.previous is None:
            text = Message(Option("condition_on_previous"), ": the model has no token for it")
            problems.append(Problem(None, text))
        # Published folders have return_timestamps false, which is no more than the default of
        # transformers, and would refuse every sound that is longer than a window.
        timestamps = self.timestamps is not False
        if self.word_times:
            problems += _word_problems(speech, timestamps)
        if problems:
            raise ConfigError(join_problems(SUBJECT, problems))
        return WindowOptions(
            language=speech.language if code is None else code if speech.multilingual else None,
            task=task, timestamps=timestamps,
            temperatures=tuple(float(value) for value in self.temperatures),
            condition=condition, condition_first=bool(self.condition_on_previous),
            compression_ratio_threshold=ratio, logprob_threshold=logprob,
            no_speech_threshold=silence, word_times=self.word_times,
            beam_size=beam_size if self.beam_size is None else self.beam_size,
        )  # fmt: skip

    def _language_problems(self, speech: Speech) -> list[Problem]:
        code = None if self.language is None else language_code(self.language)
        if speech.multilingual:
            if code is None or code in speech.languages:
                return []
            known = ", ".join(sorted(speech.languages))
            text = f" {shown(self.language)} is not a language of the model; known: {known}"
            return [Problem(None, Message(Option("language"), text))]
        problems = []
        if code not in (None, "en"):
            text = f" {shown(self.language)}: the model knows English alone"
            problems.append(Problem(None, Message(Option("language"), text)))
        if self.task == "translate":
            text = " 'translate': the model knows English alone"
            problems.append(Problem(None, Message(Option("task"), text)))
        return problems


def _word_problems(speech: Speech, timestamps: bool) -> list[Problem]:
    """Why words have no times."""
    problems = []
    if not speech.alignment_heads:
        text = Message(
            Option("word_times"), ": the model's generation_config.json names no alignment_heads, "
            "whose attention follows the words; add them there, and export it again",
        )  # fmt: skip
        problems.append(Problem(None, text))
    if not timestamps:
        text = Message(Option("word_times"), " needs ", Option("timestamps"))
        problems.append(Problem(None, text))
    return problems


def _is_temperature(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 <= value <= 100


class TranscriptionKeywords(TypedDict, total=False):
    """The options of ``transcribe``; see ``TranscriptionOptions``."""

    language: str | None
    task: str | None
    timestamps: bool | None
    prompt: str | Sequence[int] | None
    condition_on_previous: bool | None
    prompt_every_window: bool
    word_times: bool
    beam_size: int | None
    temperature: float | Sequence[float]
    compression_ratio_threshold: float | None
    logprob_threshold: float | None
    no_speech_threshold: float | None
    seed: int
    batch_size: int


def merge_options(
    options: TranscriptionOptions | None, keywords: Mapping[str, Any]
) -> TranscriptionOptions:
    """Options and keywords of a call, which override them.

    Raises:
        ConfigError: unknown or invalid options.
    """
    known = [each.name for each in fields(TranscriptionOptions)]
    problems = [unknown_option(name, known) for name in keywords if name not in known]
    if problems:
        raise ConfigError(join_problems(SUBJECT, problems))
    return replace(options or TranscriptionOptions(), **keywords)


@dataclass(frozen=True, kw_only=True)
class WindowOptions:
    """The options of ``transcribe`` for one model.

    Attributes:
        language: its code; None to detect it, or for a model of English alone.
        condition: whether a window sees the text before it, once there was a window.
        condition_first: the same for the first window, which sees the prompt.
    """

    language: str | None
    task: str
    timestamps: bool
    temperatures: tuple[float, ...]
    condition: bool
    condition_first: bool
    compression_ratio_threshold: float | None
    logprob_threshold: float | None
    no_speech_threshold: float | None
    word_times: bool
    beam_size: int


@dataclass(frozen=True)
class Word:
    """A word and its times in seconds.

    Attributes:
        start: when the word before it ends, or its segment begins.
        end: when it ends.
        text: with the space before it, and punctuation.
    """

    start: float
    end: float
    text: str


@dataclass(frozen=True)
class Segment:
    """A part of a sound that was decoded in one window.

    Attributes:
        start: in seconds.
        end: in seconds.
        text: without special tokens.
        tokens: of the model, timestamps included.
        temperature: at which its window was decoded.
        avg_logprob: mean log-probability of the tokens of its window, the end token included.
        compression_ratio: of the tokens of its window.
        no_speech_prob: the probability that its window is silent.
        seek: the first frame of its window, 0.01 s each.
        words: with their times; None if these were not asked for.
    """

    start: float
    end: float
    text: str
    tokens: tuple[int, ...]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float
    seek: int = 0
    words: tuple[Word, ...] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The segment as JSON values; without words if these were not asked for."""
        values = {**vars(self), **_times(self), "tokens": [*self.tokens]}
        if self.words is None:
            del values["words"]
        else:
            values["words"] = [{**vars(word), **_times(word)} for word in self.words]
        return values


def _times(part: Word | Segment) -> dict[str, float]:
    """Times without the digits that sums of floats add."""
    return {"start": round(part.start, 3), "end": round(part.end, 3)}


@dataclass(frozen=True)
class Transcription:
    """The text of a sound.

    Attributes:
        text: of all segments.
        segments: in their order; a window of silence has none.
        language: code of its language; None if the model does not say.
        language_probability: that of the language among all, if it was detected; else None.
        duration: in seconds.
    """

    text: str
    segments: tuple[Segment, ...] = ()
    language: str | None = None
    language_probability: float | None = None
    duration: float = 0.0

    @property
    def tokens(self) -> list[int]:
        """The tokens of all segments."""
        return [token for segment in self.segments for token in segment.tokens]

    @property
    def words(self) -> list[Word]:
        """The words of all segments; none if their times were not asked for."""
        return [word for segment in self.segments for word in segment.words or ()]

    @property
    def language_name(self) -> str | None:
        """The name of its language in English."""
        return None if self.language is None else language_name(self.language)

    def to_dict(self) -> dict[str, Any]:
        """The transcription as JSON values."""
        return {**vars(self), "segments": [segment.to_dict() for segment in self.segments]}
