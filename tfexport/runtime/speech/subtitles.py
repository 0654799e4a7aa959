"""Transcriptions as text, as subtitles in SRT and WebVTT, and as JSON."""

import json
from collections.abc import Callable, Iterator, Mapping

from tfexport.runtime.speech.transcription import Segment, Transcription


def as_text(found: Transcription) -> str:
    """The text in one line."""
    return found.text.strip() + "\n"


def as_srt(found: Transcription) -> str:
    """Subtitles in SRT."""
    return "".join(
        f"{number}\n{_time(each.start, ',')} --> {_time(_end(found, each), ',')}\n{text}\n\n"
        for number, (each, text) in enumerate(_shown(found), 1)
    )


def as_vtt(found: Transcription) -> str:
    """Subtitles in WebVTT."""
    escaped = (
        (each, text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))
        for each, text in _shown(found)
    )
    cues = "".join(
        f"{_time(each.start, '.')} --> {_time(_end(found, each), '.')}\n{text}\n\n"
        for each, text in escaped
    )
    return f"WEBVTT\n\n{cues}"


def as_json(found: Transcription) -> str:
    """All values, as one line of JSON."""
    return json.dumps(found.to_dict(), ensure_ascii=False) + "\n"


FORMATS: Mapping[str, Callable[[Transcription], str]] = {
    "text": as_text, "srt": as_srt, "vtt": as_vtt, "json": as_json,
}  # fmt: skip


def _shown(found: Transcription) -> Iterator[tuple[Segment, str]]:
    """The segments that have text, without lines in it and the mark of times."""
    for segment in found.segments:
        text = " ".join(segment.text.split()).replace("-->", "->")
        if text:
            yield segment, text


def _end(found: Transcription, segment: Segment) -> float:
    """When a segment ends; at the sound's end if that is within it, as of a window's silence."""
    return found.duration if segment.start < found.duration < segment.end else segment.end


def _time(seconds: float, point: str) -> str:
    milliseconds = round(seconds * 1000)
    minutes, rest = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02d}:{minutes:02d}:{rest // 1000:02d}{point}{rest % 1000:03d}"
