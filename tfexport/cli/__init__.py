"""The ``tfexport`` command: each verb parses, calls one library function and prints.

Heavy libraries are imported inside the commands, so that ``tfexport translate`` works without
torch.
"""

INTERRUPTED = 130  # exit status after Ctrl-C
