"""How much of a file is read."""

from dataclasses import dataclass

from tfexport.errors import ConfigError

MOST_SECONDS = 14_400.0  # of one sound of ``transcribe``; an hour takes 0.56 GB while it is read


@dataclass(frozen=True)
class MediaLimits:
    """Bounds of memory and time for files that anybody may send.

    Attributes:
        seconds: of a sound, for models that take it as a whole; their encoders need memory with its
            square. Models with windows of a fixed length have that as their limit.
        pixels: of a picture before it is resized.
    """

    seconds: float = 60.0
    pixels: int = 100_000_000

    def __post_init__(self) -> None:
        if not 0 < self.seconds <= 86_400:
            raise ConfigError(f"seconds: {self.seconds} is not from 0 to 86400 (a day)")
        if not 0 < self.pixels <= 1 << 31:
            raise ConfigError(f"pixels: {self.pixels} is not from 1 to {1 << 31}")
