"""Whisper's own way of decoding: rules on tokens, windows of long sounds, subtitles."""
