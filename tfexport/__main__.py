"""``python -m tfexport``."""

from tfexport.cli.start import main

main()
