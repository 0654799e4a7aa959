"""``Self`` and ``Unpack``; ``typing`` has them from Python 3.11 on."""

import sys

if sys.version_info >= (3, 11):
    from typing import Self, Unpack
else:
    from typing_extensions import Self, Unpack

__all__ = ["Self", "Unpack"]
