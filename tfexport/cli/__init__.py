"""The ``tfexport`` command: bodies parse, call one library function, print.

Everything heavy is imported inside command bodies, so that ``tfexport translate`` starts where
torch is not installed.
"""

INTERRUPTED = 130  # exit status after Ctrl-C
