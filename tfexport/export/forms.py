"""The registry of graphs: how each is exported and compared, and the subjects that have it.

The torch modules, spec and export function of a form are in its file of ``graphs``, its comparison
with eager PyTorch in ``parity``. An entry here joins them; export, manifest and comparison read
only this registry.
"""

import onnx_ir as ir

from tfexport import graph_io
from tfexport.errors import ConfigError, ExportError, Message, Problem
from tfexport.export.checkpoint_subject import CheckpointSubject
from tfexport.export.graphs.transformer_graphs import make_shortlist
from tfexport.export.module_subject import ModuleSubject
from tfexport.export.parity.forward import compare_forward
from tfexport.export.parity.recognised import compare_alignment, compare_states
from tfexport.export.parity.search import compare_beam, compare_generate
from tfexport.export.parity.steps import (
    compare_decoder,
    compare_encoder,
    compare_shortlist,
    compare_slots,
)
from tfexport.export.subject import DECODER, LAYERS, WHOLE, Form, Subject
from tfexport.typing import Progress

# In the order of export and comparison: a form comes after those that it needs.
FORMS: tuple[Form, ...] = (
    Form("encoder", lambda subject: subject.export_encoder(), compare_encoder),
    Form("decoder", lambda subject: subject.export_decoder(), compare_decoder),
    Form(
        graph_io.SHORTLIST, lambda _, decoder: make_shortlist(decoder), compare_shortlist,
        needs=("decoder",), exists_for=lambda subject: subject.native == WHOLE,
    ),
    Form(
        graph_io.GENERATE, lambda subject, *encoder: subject.export_generate(*encoder),
        compare_generate, needs=("encoder",), spec=lambda subject: subject.generate_spec,
    ),
    Form(
        graph_io.BEAM, lambda subject, encoder: subject.export_beam(encoder), compare_beam,
        needs=("encoder",),
    ),
    Form(
        graph_io.STEP, CheckpointSubject.export_step, compare_slots,
        exists_for=lambda subject: subject.has_step,
    ),
    Form(
        graph_io.STATES, ModuleSubject.export_states, compare_states,
        exists_for=lambda subject: subject.native == DECODER,
    ),
    Form(
        graph_io.EMBEDDINGS, ModuleSubject.export_embeddings, compare_states,
        exists_for=lambda subject: subject.native == LAYERS,
    ),
    Form(
        graph_io.ALIGNMENT, ModuleSubject.export_alignment, compare_alignment,
        exists_for=lambda subject: bool(subject.alignment_heads),
    ),
    Form(
        "forward", CheckpointSubject.export_forward, compare_forward, in_bundle=False,
        spec=lambda subject: subject.forward_spec, decodes=False,
    ),
)  # fmt: skip


def bundle_forms() -> tuple[Form, ...]:
    """The graphs that a bundle may have."""
    return tuple(form for form in FORMS if form.in_bundle)


def export_forms(subject: Subject, progress: Progress) -> dict[str, ir.Model]:
    """Export every graph of a bundle, in memory; return them by name.

    Raises:
        ExportError: torch's exporter failed, or a form is listed before one that it needs.
    """
    forms = [form for form in bundle_forms() if form.exists_for(subject)]
    graphs: dict[str, ir.Model] = {}
    for done, form in enumerate(forms):
        progress(f"exporting {form.filename}", done, len(forms))
        if missing := [name for name in form.needs if name not in graphs]:
            raise ExportError(
                f"{form.filename}: is made from {', '.join(missing)}, which comes later in the "
                "registry of forms, or is missing."
            )
        graphs[form.name] = subject.export(form, *(graphs[name] for name in form.needs))
    return graphs


def file_forms() -> tuple[str, ...]:
    """The names of the forms that are exported as one file."""
    return tuple(form.name for form in FORMS if form.spec is not None)


def file_form(name: str) -> Form:
    """A form that is exported as one file, by its name.

    Raises:
        ConfigError: there is no such form.
    """
    for form in FORMS:
        if form.name == name and form.spec is not None:
            return form
    known = ", ".join(map(repr, file_forms()))
    raise ConfigError(Message(Problem("graph", f"{name!r} is not one of {known}")))
