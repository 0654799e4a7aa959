"""The errors that name a layer and what it was asked to do."""

from tfexport.errors import ExportError


def refusal(layer: str, found: str, remedy: str) -> ExportError:
    """The error for a layer that has no equal form in ONNX.

    Args:
        layer: its name in torch.
        found: the option or the use that is refused.
        remedy: what to do instead.
    """
    return ExportError(f"{layer}: {found}; {remedy}")


def first_refusal(error: BaseException) -> ExportError | None:
    """The refusal among an error's causes; torch wraps what is raised while it traces."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        cause = pending.pop(0)
        if cause is None or id(cause) in seen:
            continue
        if isinstance(cause, ExportError):
            return cause
        seen.add(id(cause))
        pending += [cause.__cause__, cause.__context__]
    return None
