"""The type of a path in signatures: text, or an object of ``pathlib``."""

import os
from typing import TypeAlias

PathLike: TypeAlias = str | os.PathLike[str]
