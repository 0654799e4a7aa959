"""Quantisation of a bundle that was exported before. Needs no torch."""

from tfexport.export.artifacts.option_rules import BUNDLE
from tfexport.export.artifacts.results import ExportResult
from tfexport.export.quantization.bundle import quantize_bundle
from tfexport.runtime.model.native_engine import pack_new
from tfexport.runtime.text.codec import LanguagePair
from tfexport.typing import PathLike, Progress


def quantize(  # noqa: PLR0913 - one keyword for each option of the command
    artifact: PathLike,
    output: PathLike,
    weights: str = "int8",
    *,
    samples: PathLike | None = None,
    source_language: str | None = None,
    target_language: str | None = None,
    accept_loss: bool = False,
    force: bool = False,
    pack: bool = True,
    progress: Progress | None = None,
) -> ExportResult:
    """Quantise a bundle's weights; no file is left if their quality is not good enough.

    Args:
        artifact: a bundle with float32 weights; it is not compared with eager PyTorch again.
        output: the new bundle's folder.
        weights: "int8", "int4" or "bf16".
        samples: a file by which the quality is measured: one text a line, followed by a tab and a
            reference translation if there is one; ids if the bundle holds no tokenizer; of a bundle
            that reads sound or pictures, the name of a file in the text's place; or an ``.npz`` of
            rows, see ``export``. The quantised bundle must predict the original's next token at 97
            % of the positions, and lose no more than 0.3 BLEU against the references (of sound or
            pictures with references: 90 % and 0.5 points of word errors). Up to eight parameters
            stay float32 to reach that, those that change the predictions most first. Without
            samples a bundle that reads sound or pictures is measured by built-in ones; of others
            nothing is measured, which the manifest records.
        source_language: of the samples, for a model that needs it.
        target_language: of the references, for a model that needs it.
        accept_loss: write it even if its quality is not good enough; the manifest records it.
        force: replace a bundle that exists.
        pack: next to the bundle, write what lets it open fast on this machine; see ``export``.
        progress: called with the progress of each step; see ``tfexport.typing``.

    Returns:
        The new bundle, with the quality and the parameters that stayed float32.

    Raises:
        QualityError: the weights change too much.
        BundleError: the bundle cannot be read, or is quantised already.
        ConfigError: an unknown kind of weights.
        InputError: a sample that cannot be used.
        OutputExistsError: the output exists.
    """
    made = quantize_bundle(
        artifact, output, weights, samples=samples,
        language_pair=LanguagePair(source_language, target_language), accept_loss=accept_loss,
        force=force, progress=progress,
    )  # fmt: skip
    if pack:
        pack_new(made.path)
    return ExportResult(
        made.path,
        BUNDLE,
        bundle_manifest=made.manifest,
        weights=weights,
        quality=made.quality,
        kept=made.kept,
    )
