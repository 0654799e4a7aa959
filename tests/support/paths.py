"""Paths in the repository that tests use."""

from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
VERSION_1 = REPOSITORY / "tests" / "fixtures" / "version-1.bundle"
