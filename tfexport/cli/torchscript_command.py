"""``tfexport torchscript``."""

from typing import Any

import click

from tfexport.cli.console import (
    checkpoint_options,
    needs,
    progress_bar,
    reference_option,
    verify_options,
)
from tfexport.cli.module_option import (
    MODULE,
    STEPS_OPTION,
    check_sources,
    refuse_others,
    script_named_module,
)


@click.command(short_help="Export a checkpoint to one file that torch alone loads.")
@click.option("--checkpoint", type=click.Path(), help="File or folder to export.")
@MODULE
@STEPS_OPTION
@click.option("-o", "--output", required=True, type=click.Path(), help="File to write.")
@checkpoint_options
@reference_option
@click.option(
    "--torch-export",
    is_flag=True,
    help="Write the torch.export program of generate, TorchScript's successor. A name that ends "
    "with .pt2 does the same.",
)
@verify_options
@click.option("--force", is_flag=True, help="Replace a file that exists.")
def torchscript(
    checkpoint: str | None,
    module: str | None,
    output: str,
    verify: str,
    no_verify: bool,
    torch_export: bool,
    force: bool,
    **options: Any,
) -> None:
    """Export a checkpoint to a scripted, frozen module, then compare it with eager PyTorch.

    torch.jit.load reads it in Python or C++, without tfexport: forward, encode, step, and
    generate(input_ids, attention_mask, max_length). If anything differs, the command fails and no
    file is left.

    With --module the module's own methods are scripted, if torch can.

    \b
    tfexport torchscript --checkpoint model.pt -o model.ts --set num_heads=8 --set pad_id=1 \\
        --set bos_id=2 --set eos_id=3
    """
    from tfexport.atomic import check_new_file
    from tfexport.export.artifacts.option_rules import TORCH_EXPORT, TORCHSCRIPT, kind_of

    check_sources(checkpoint, module)
    level = "none" if no_verify else verify
    check_new_file(output, force)  # before torch is loaded, which takes a second
    if module is not None:
        refuse_others({**options, "torch_export": torch_export})
        script_named_module(module, output, {"verify": level, "force": force}, options["steps"])
        return
    assert checkpoint is not None
    with needs("export"):
        from tfexport.export import export
    program = torch_export or kind_of(output, None) == TORCH_EXPORT
    graph = TORCH_EXPORT if program else TORCHSCRIPT
    with progress_bar() as progress:
        made = export(
            checkpoint, output, graph=graph, verify=level, force=force, progress=progress, **options
        )
    from tfexport.cli.reports import print_result

    print_result(output, made.size, made.report)
