"""``tfexport`` in whose servers a bundle of speech is a table; its steps take ``STEP_SECONDS``."""

import os
from typing import Any

from tests.support.spoken_bundle import use_table
from tfexport.cli.start import main


class _Patch:
    """Sets attributes for as long as the process lives."""

    def setattr(self, owner: Any, name: str, value: Any) -> None:
        setattr(owner, name, value)


if __name__ == "__main__":
    use_table(_Patch(), float(os.environ.get("STEP_SECONDS", "0")))
    main()
