"""Where tests find what the repository holds."""

from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
VERSION_1 = REPOSITORY / "tests" / "fixtures" / "version-1.bundle"
