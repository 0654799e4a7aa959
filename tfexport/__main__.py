"""``python -m tfexport``."""

from tfexport.cli.main import main

main()
