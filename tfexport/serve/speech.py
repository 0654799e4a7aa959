"""Transcription of the sound of a request, by a Whisper model."""

from collections.abc import Callable, Sequence

from tfexport.errors import ConfigError, InputError
from tfexport.runtime.engine import Engine
from tfexport.runtime.scheduler import SoundRequest, Submission
from tfexport.runtime.speech.transcription import (
    SUBJECT,
    Segment,
    Transcription,
    TranscriptionOptions,
)
from tfexport.serve.call import Call
from tfexport.serve.failures import busy, spelled, wrong
from tfexport.serve.models import ServerModel
from tfexport.serve.texts import outcome

OnSegments = Callable[[Sequence[Segment]], object]


def prompt_ids(engine: Engine, prompt: str) -> tuple[int, ...] | None:
    """The end of a prompt, as much as a window has room for; None if it is blank.

    Raises:
        InputError: it is not text.
    """
    speech = engine.manifest.speech
    if speech is None or not prompt.strip():
        return None
    ids = engine.texts.encode_target(f" {prompt.strip()}")
    return tuple(ids[-(speech.positions // 2 - 1) :])


async def submit_sound(
    model: ServerModel,
    file: bytes,
    options: TranscriptionOptions,
    call: Call,
    on_segments: OnSegments | None = None,
) -> tuple[SoundRequest, Submission]:
    """Read a sound and submit it; the end of the call takes it out again.

    Args:
        model: a Whisper model.
        file: the bytes of a file.
        options: how to transcribe it.
        call: the call, whose body is not needed any more.
        on_segments: called by a thread of the scheduler with the segments of each window.

    Raises:
        RequestError: options do not fit the model, the sound cannot be read, or sounds that
            wait fill the memory for them.
        QueueFullError: too many requests wait.
    """

    def read() -> SoundRequest:
        try:
            transcriber = model.transcriber(options)
        except ConfigError as error:  # begins with the name of the field, which the answer has
            raise wrong(spelled(error).removeprefix(f"{SUBJECT}: ")) from None
        try:
            sound = transcriber.enter(0, *transcriber.features(file))
        except InputError as error:
            raise wrong(f"file: {spelled(error)}") from None
        return SoundRequest([], transcriber=transcriber, sound=sound, on_segments=on_segments)

    request = await call.aside(read)  # a short file may be a long sound
    hold = call.exits.enter_context(model.sounds.held())
    if not hold(request.sound.features.nbytes):
        raise busy("too many long sounds are waiting", model.scheduler.seconds_to_clear())
    call.drop_body()
    submission = model.scheduler.submit_sound(request, deadline=call.deadline)
    call.exits.callback(submission.cancel)
    model.observer.heard(request.sound.duration)
    return request, submission


async def transcription(request: SoundRequest, submission: Submission, call: Call) -> Transcription:
    """Wait until all windows are decoded, and return the transcription.

    Raises:
        RequestError: the deadline has passed.
        InputError: the prompt leaves no room.
    """
    await outcome(submission, call)
    return await call.aside(request.transcriber.result, request.sound)
