"""Transcription of sounds of any length, window by window.

Source: ``generate`` of Whisper in transformers, with one sound at a time; Radford et al. 2022,
section 3.8.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfexport.errors import (
    ConfigError,
    InputError,
    Message,
    Option,
    join_problems,
    shown,
    system_reason,
)
from tfexport.graph_io import ALIGNMENT
from tfexport.preprocessing import AUDIO
from tfexport.runtime.engine import Engine
from tfexport.runtime.media.limits import MOST_SECONDS
from tfexport.runtime.media.sound_features import LogMel
from tfexport.runtime.speech.rules import split_window
from tfexport.runtime.speech.transcription import (
    SUBJECT,
    Segment,
    Transcription,
    TranscriptionOptions,
    Word,
)
from tfexport.runtime.speech.windows import (
    Window,
    WindowResult,
    decode_windows,
    detect_languages,
    encode_windows,
    task_tokens,
    times_of_tokens,
)
from tfexport.runtime.speech.words import group_words
from tfexport.speech import FRAME_SECONDS, Speech

Features = NDArray[np.float32]  # (mel bins, frames)


@dataclass(eq=False)
class Sound:
    """A sound and how far it is.

    Attributes:
        number: its place among all.
        features: (mel bins, frames).
        duration: in seconds.
        longest: the most tokens of a window, which grows with what is given, as in transformers.
        conditioned: whether the next window sees the text before it.
        texts: the tokens of a prompt and of all segments so far.
        given: the tokens for language, task and no timestamps.
        encoded: the first frame of a window, and what the encoder made of it.
    """

    number: int
    features: Features
    duration: float
    longest: int
    conditioned: bool
    texts: list[tuple[int, ...]]
    seek: int = 0
    given: list[int] = field(default_factory=list)
    language: str | None = None
    language_probability: float | None = None
    segments: list[Segment] = field(default_factory=list)
    encoded: tuple[int, Any] | None = None

    @property
    def frames(self) -> int:
        """Of all windows."""
        return int(self.features.shape[1])

    @property
    def ended(self) -> bool:
        """Whether it has no further window."""
        return self.seek >= self.frames

    @property
    def heard(self) -> int:
        """Its frames without the silence that fills its window."""
        return min(self.frames, math.ceil(round(self.duration / FRAME_SECONDS, 6)))


def _other_verb(media: str | None) -> str:
    """The end of a message that refuses a bundle of another model, with the verb that takes it."""
    takes = "transcribe takes bundles of Whisper models"
    if media != AUDIO:
        reads = "no sound" if media is None else "pictures, not sound"
        return f"reads {reads}; translate takes it ('tfexport translate'), and {takes}."
    return (
        "is not decoded as Whisper is: its model's files have no settings for it. Its sounds are "
        f"read by 'tfexport translate', in Python by generate_from; {takes}."
    )


class Transcriber:
    """Transcribes sounds with a bundle of a Whisper model."""

    def __init__(
        self, engine: Engine, options: TranscriptionOptions, most_seconds: float = MOST_SECONDS
    ) -> None:
        """Check options for a model.

        Args:
            engine: of an open bundle.
            options: for all sounds.
            most_seconds: of one sound.

        Raises:
            ConfigError: the bundle is of another model, or options do not fit it.
        """
        self._engine, self._given = engine, options
        speech = engine.manifest.speech
        io = engine.manifest.module_io
        if speech is None or io is None:
            raise ConfigError(f"{engine.path}: {_other_verb(engine.manifest.media)}")
        self._speech: Speech = speech
        self._options = options.resolved(
            speech, int(engine.manifest.generation.get("beam_size", 1))
        )
        if self._options.word_times and not engine.model.has_alignment:
            raise ConfigError(Message(
                f"{SUBJECT}: ", Option("word_times"), f": the bundle has no {ALIGNMENT}.onnx, from "
                f"which the engine {engine.model.engine} would get attention; export the model "
                "again, or use the native engine (tfexport-native)",
            ))  # fmt: skip
        (self._input,) = io.inputs
        self.window_frames, self.most_seconds = int(self._input.axes[-1]), most_seconds
        reader = engine.files.preprocessor
        self._reader = reader if isinstance(reader, LogMel) else None
        if self._reader is not None:
            frames = self._reader.num_samples // self._reader.hop_length
            if frames != self.window_frames:
                raise ConfigError(
                    f"{engine.path}: its preprocessing makes windows of {frames} frames, and the "
                    f"model takes {self.window_frames}"
                )
        self._prompt = self._prompt_ids(options.prompt)
        defaults = engine.manifest.generation
        self._longest = int(defaults.get("max_length", speech.positions - 1)) + 1

    def transcribe(self, sounds: Iterable[Any]) -> list[Transcription]:
        """Transcribe sounds.

        Args:
            sounds: see ``features``.

        Raises:
            InputError: naming every sound that cannot be transcribed.
        """
        found = [*self.stream(sounds)]
        problems = [
            Message(f"sound {number}: ", result.message)
            for number, result in enumerate(found)
            if isinstance(result, InputError)
        ]
        if problems:
            raise InputError(join_problems(SUBJECT, problems))
        return [result for result in found if isinstance(result, Transcription)]

    def features(self, sound: Any) -> tuple[Features, float]:
        """The features (mel bins, frames) of a sound, and its duration in seconds.

        A sound that fits into a window is padded to it, as transformers does by default; of a
        longer one the features have its own length.

        Args:
            sound: the path of a file, its bytes, or samples and their rate (array, rate); the same
                as ``{"audio": sound}``; or the model's input by its name, of any number of frames.

        Raises:
            InputError: it cannot be read, or is too long.
        """
        name = self._input.name
        if isinstance(sound, Mapping):
            if {*sound} == {name}:
                return as_features(sound, name)
            if {*sound} != {AUDIO}:
                raise InputError(
                    f"has the keys {', '.join(map(shown, sound))}; either {AUDIO!r} or {name!r} is "
                    "needed"
                )
            sound = sound[AUDIO]
        if self._reader is None:
            raise InputError(
                f"the bundle reads no files: its manifest has no preprocessing of sound; the model "
                f"takes {name}"
            )
        try:
            samples = self._reader.read(sound, self.most_seconds)
        except OSError as error:
            raise InputError(system_reason(error)) from None
        seconds = len(samples) / self._reader.sampling_rate
        if len(samples) <= self._reader.num_samples:
            return self._reader.features(self._reader.padded(samples)), seconds
        return self._reader.features(self._reader.normalized(samples)), seconds

    def stream(
        self, sounds: Iterable[Any], heard: Callable[[int, float, float], None] | None = None
    ) -> Iterator[Transcription | InputError]:
        """Transcribe any number of sounds, and give the results in their order.

        Windows of ``batch_size`` sounds are decoded together. The error of a sound is its result.

        Args:
            sounds: see ``features``.
            heard: takes the number of the first sound that is being transcribed, from 0, how many
                of its seconds have been, and its duration; called after every window.
        """
        waiting, running = enumerate(sounds), list[Sound]()
        done: dict[int, Transcription | InputError] = {}
        following, more = 0, True
        while more or running:
            entered = list[Sound]()
            while more and len(running) + len(entered) < self._given.batch_size:
                number, given = next(waiting, (-1, None))
                if number < 0:
                    more = False
                    break
                try:
                    entered.append(self.enter(number, *self.features(given)))
                except InputError as error:
                    done[number] = error
            self.begin(entered)
            running += entered
            for sound, problem in self.step(running):
                running.remove(sound)
                done[sound.number] = problem
            if heard is not None and running:
                first = running[0]
                seconds = min(first.seek * FRAME_SECONDS, first.duration)
                heard(first.number, seconds, first.duration)
            for sound in [each for each in running if each.ended]:
                running.remove(sound)
                done[sound.number] = self.result(sound)
            while following in done:
                yield done.pop(following)
                following += 1

    def enter(self, number: int, features: Features, duration: float) -> Sound:
        """A sound before its first window.

        Raises:
            InputError: its features are not the model's, or it is too long for no timestamps.
        """
        bins = self._input.axes[1]
        array = np.asarray(features)
        if array.ndim != 2 or array.shape[0] != bins or not array.shape[1]:
            raise InputError(f"{self._input.name}: has shape {array.shape}, not ({bins}, frames)")
        if array.shape[1] > self.window_frames and not self._options.timestamps:
            raise InputError(Message(
                f"{array.shape[1] * FRAME_SECONDS:.2f} s are more than a window of "
                f"{self.window_frames * FRAME_SECONDS:.2f} s, and without ",
                Option("timestamps"), " nothing says where the next one begins",
            ))  # fmt: skip
        every = self._given.prompt_every_window
        texts = [] if self._prompt is None or every else [self._prompt]
        first = self._options.condition_first
        return Sound(number, array, duration, self._longest, first, texts)

    def begin(self, sounds: Sequence[Sound]) -> None:
        """Find the languages of sounds, before their first windows."""
        speech, options = self._speech, self._options
        for sound in sounds:
            sound.language = options.language if speech.multilingual else None
        unknown = [each for each in sounds if each.language is None] if speech.multilingual else []
        if unknown:
            encoded = self._encode(unknown)
            for sound, (code, probability) in zip(
                unknown, detect_languages(self._engine, speech, encoded), strict=True
            ):
                sound.language, sound.language_probability = code, probability
        start = self._engine.manifest.special_ids.decoder_start
        for sound in sounds:
            sound.given = task_tokens(speech, start, options, sound.language)

    def _encode(self, sounds: Sequence[Sound]) -> list[Any]:
        """Encode the next windows of sounds, each once."""
        left = [each for each in sounds if each.encoded is None or each.encoded[0] != each.seek]
        if left:
            inputs = [self._inputs_of(sound) for sound in left]
            for sound, encoded in zip(left, encode_windows(self._engine, inputs), strict=True):
                sound.encoded = sound.seek, encoded
        return [each.encoded[1] for each in sounds if each.encoded is not None]

    def _inputs_of(self, sound: Sound) -> dict[str, Features]:
        """The next window of a sound; what is behind its end is 0."""
        part = sound.features[:, sound.seek : sound.seek + self.window_frames]
        missing = self.window_frames - part.shape[1]
        if missing:
            part = np.pad(part, ((0, 0), (0, missing)))
        return {self._input.name: part}

    def step(
        self, sounds: Sequence[Sound], going: Callable[[], bool] | None = None
    ) -> list[tuple[Sound, InputError]]:
        """Decode one window of each sound, and return those that have none, with the reason.

        Args:
            sounds: after ``begin``, none of them at its end.
            going: called between steps; returns whether to continue.

        Raises:
            AbandonedError: ``going`` returned false; none of the sounds can go on.
        """
        windows, failed = dict[int, Window](), list[tuple[Sound, InputError]]()
        for sound, encoded in zip(sounds, self._encode(sounds), strict=True):
            try:
                windows[id(sound)] = self._window(sound, encoded)
            except InputError as error:
                failed.append((sound, error))
        found: dict[int, WindowResult] = {}
        ready = [sound for sound in sounds if id(sound) in windows]
        pending = ready
        for temperature in self._options.temperatures:
            if not pending:
                break
            made = decode_windows(
                self._engine, self._speech, [windows[id(sound)] for sound in pending],
                self._options, temperature, self._given.seed, self._given.batch_size, going,
            )  # fmt: skip
            found |= {id(sound): each for sound, each in zip(pending, made, strict=True)}
            for sound in pending:
                sound.conditioned = self._options.condition and temperature < 0.5
            pending = [each for each in pending if found[id(each)].is_doubtful(self._options)]
        for sound in ready:
            self._add(sound, windows[id(sound)], found[id(sound)])
        return failed

    def _window(self, sound: Sound, encoded: Any) -> Window:
        """The next window of a sound.

        Raises:
            InputError: what comes before it leaves no room.
        """
        speech = self._speech
        ids, given = self._given_ids(sound), len(sound.given)
        if speech.max_new_tokens is not None:
            sound.longest = min(len(ids) + speech.max_new_tokens, speech.positions)
        else:
            more = min(speech.positions // 2 - 1, len(ids))
            sound.longest = min(sound.longest + more, speech.positions)
        if len(ids) >= sound.longest:
            raise InputError(Message(
                Option("prompt"), f": with {len(ids)} tokens before a window there is no room in "
                f"the {sound.longest} of a row",
            ))  # fmt: skip
        return Window(encoded, (*ids,), given, sound.longest, sound.number, sound.seek)

    def _given_ids(self, sound: Sound) -> list[int]:
        """The tokens before a window: a prompt, the text before it, language and task."""
        speech, prompt = self._speech, self._prompt
        previous = [] if speech.previous is None else [speech.previous]
        if sound.conditioned and sound.texts:
            begin, most = speech.first_timestamp, speech.positions // 2 - 1
            # Of two timestamps at the end of a segment the second one is left out.
            text = [
                token
                for tokens in sound.texts
                for token in (tokens[:-1] if len(tokens) > 2 and tokens[-2] >= begin else tokens)
            ]
            first = previous
            if self._given.prompt_every_window and prompt is not None:
                first = [*previous, *prompt]
            return [*first, *text[-most:], *sound.given]
        if prompt is not None:
            return [*previous, *prompt, *sound.given]
        return sound.given

    def _add(self, sound: Sound, window: Window, found: WindowResult) -> None:
        """Add the segments of a window, and go on to the next one."""
        frames = min(sound.frames - sound.seek, self.window_frames)
        if found.is_silence(self._options):
            sound.seek += frames
            return
        parts, further = split_window(
            found.tokens, sound.seek, frames, self._speech.first_timestamp
        )
        times, place = self._times(sound, window, found), 0
        for start, end, tokens in parts:
            sound.texts.append(tokens)
            words = None
            if times is not None:
                words = self._words(sound, tokens, times[place : place + len(tokens)])
            place += len(tokens)
            sound.segments.append(Segment(
                start, end, self._text(tokens), tokens, found.temperature,
                found.avg_logprob, found.compression_ratio, found.no_speech_prob, sound.seek, words,
            ))  # fmt: skip
        # Only without their rules can timestamps stand still.
        sound.seek += further if further > 0 else frames

    def _times(self, sound: Sound, window: Window, found: WindowResult) -> list[float] | None:
        """When each token of a window ends, in seconds of the sound; None if nobody asks for it."""
        if not self._options.word_times:
            return None
        frames, begin = sound.heard - sound.seek, sound.seek * FRAME_SECONDS
        times = times_of_tokens(self._engine, self._speech, window, found, frames)
        return [begin + time for time in times]

    def _words(
        self, sound: Sound, tokens: Sequence[int], times: Sequence[float]
    ) -> tuple[Word, ...]:
        """The words of a segment; its first token stands for the time at which it begins."""
        hidden, begin = {*self._engine.manifest.hidden_ids}, self._speech.first_timestamp
        shown_ids, spans = [], []
        for place, token in enumerate(tokens):
            if token < begin and token not in hidden:
                shown_ids.append(token)
                spans.append((round(times[max(0, place - 1)], 2), round(times[place], 2)))
        if not self._engine.gives_text:
            return ()
        language = sound.language or "en"
        return tuple(group_words(shown_ids, spans, self._engine.texts.decode, language))

    def result(self, sound: Sound) -> Transcription:
        """The transcription of a sound that has ended."""
        tokens = [token for segment in sound.segments for token in segment.tokens]
        language = sound.language if self._speech.multilingual else "en"
        return Transcription(
            self._text(tokens), (*sound.segments,), language, sound.language_probability,
            sound.duration,
        )  # fmt: skip

    def _text(self, tokens: Sequence[int]) -> str:
        """The text of tokens, without timestamps; empty if there is no tokenizer."""
        if not self._engine.gives_text:
            return ""
        begin = self._speech.first_timestamp
        hidden = {*self._engine.manifest.hidden_ids}
        return self._engine.texts.decode(
            [token for token in tokens if token < begin and token not in hidden]
        )

    def _prompt_ids(self, prompt: str | Sequence[int] | None) -> tuple[int, ...] | None:
        """The ids of a prompt, without special tokens.

        Raises:
            InputError: it is not text of the model, or the model has no token for prompts.
        """
        if prompt is None or (isinstance(prompt, str) and not prompt.strip()):
            return None
        if self._speech.previous is None:
            raise ConfigError(Message(Option("prompt"), ": the model has no token for it"))
        text = f" {prompt.strip()}" if isinstance(prompt, str) else prompt
        ids = self._engine.texts.encode_target(text)
        special = {*self._engine.manifest.hidden_ids}
        wrong = [each for each in ids if each in special or each > self._speech.no_timestamps]
        if wrong:
            raise InputError(Message(
                Option("prompt"), f" {shown(prompt)} has special tokens: {wrong[:5]}"
            ))  # fmt: skip
        return tuple(ids)


def as_features(sound: Any, name: str) -> tuple[Features, float]:
    """A sound that is given as its features.

    Raises:
        InputError: it is something else.
    """
    array = np.asarray(sound[name])
    if array.dtype.kind not in "fiu" or not np.isfinite(array).all():
        raise InputError(f"{name}: is not an array of finite numbers")
    return array.astype(np.float32), array.shape[-1] * FRAME_SECONDS
