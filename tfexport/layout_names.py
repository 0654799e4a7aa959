"""The layouts of checkpoints by name: the table in which a new family gets its row.

Each has a file of its name, with underscores, in ``tfexport/model_src/checkpoint/layouts``. The
command line lists the names without loading torch.
"""

# Of layouts that know as many keys of a file, the first is taken.
LAYOUT_NAMES = (
    "nn-transformer",
    "nn-transformer-rebuilt",
    "annotated",
    "bart",
    "blenderbot",
    "blenderbot-small",
    "fairseq",
    "fsmt",
    "joeynmt",
    "m2m-100",
    "marian",
    "marian-nmt",
    "mbart",
    "mt5",
    "opennmt-py",
    "pegasus",
    "plbart",
    "rmsnorm",
    "sockeye",
    "t5",
    "umt5",
    "native",
)
