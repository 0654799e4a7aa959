"""The archive of a torch file, written without debug records of local paths."""

import io
from pathlib import Path

import torch
from torch.export import ExportedProgram

from tfexport.export.artifacts.info import METADATA, ArtifactInfo
from tfexport.export.quiet import quiet


def write_archive(
    made: torch.jit.ScriptModule | ExportedProgram, path: Path, info: ArtifactInfo
) -> None:
    """Write a scripted module or a program, with its metadata as an extra file."""
    extra = {METADATA: info.to_json()}
    # In memory first: where a disk is full, torch's writer ends the process.
    buffer = io.BytesIO()
    with quiet():
        if isinstance(made, ExportedProgram):
            torch.export.save(made, buffer, extra_files=extra)
        else:
            torch.jit.save(made, buffer, _extra_files=extra)
            buffer = _without_sources(buffer)
    path.write_bytes(buffer.getbuffer())


def _without_sources(script: io.BytesIO) -> io.BytesIO:
    """Copy a TorchScript archive without its debug records, which contain local paths."""
    script.seek(0)
    reader = torch._C.PyTorchFileReader(script)
    copy = io.BytesIO()
    writer = torch._C.PyTorchFileWriter(copy)
    own = {"version", "byteorder", ".data/serialization_id"}  # the writer adds these itself
    for name in reader.get_all_records():
        if name not in own and not name.endswith(".debug_pkl"):
            content = reader.get_record(name)
            writer.write_record(name, content, len(content))
    writer.write_end_of_file()
    return copy
