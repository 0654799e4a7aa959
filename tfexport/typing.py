"""``Unpack``, by which a ``TypedDict`` types keywords; ``typing`` has it from Python 3.11 on."""

import sys

if sys.version_info >= (3, 11):
    from typing import Unpack
else:
    from typing_extensions import Unpack

__all__ = ["Unpack"]
