"""Images of cross-attention: one row per target token, one column per source token."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tfexport.atomic import naming
from tfexport.cli.console import needs
from tfexport.errors import ConfigError

if TYPE_CHECKING:
    from tfexport.runtime.files.line_stream import LineResult
    from tfexport.runtime.text.codec import TextCodec

MAX_IMAGES = 100  # of one run
FORMATS = (".png", ".svg", ".pdf")


class Plotter:
    """A callback that draws one image for each line."""

    def __init__(self, image: str, texts: "TextCodec", ids: bool) -> None:
        with needs("plot"):
            import matplotlib

        matplotlib.use("agg")  # files, not windows
        self._path, self._texts, self._ids = Path(image), texts, ids
        if self._path.suffix not in FORMATS:
            raise ConfigError(f"--attention-plot: {image!r} does not end in {', '.join(FORMATS)}")

    def __call__(self, line: "LineResult") -> None:
        """Draw the attention of a line's best hypothesis, unless that is empty."""
        if line.result is None or line.number > MAX_IMAGES:
            return
        best = line.result.hypotheses[0]
        if best.attention is None or not best.attention.size:
            return
        from matplotlib.figure import Figure

        rows, columns = best.attention.shape
        figure = Figure(figsize=(1.5 + 0.4 * columns, 1.2 + 0.32 * rows), layout="constrained")
        axes = figure.add_subplot()
        picture = axes.imshow(best.attention, cmap="viridis", vmin=0, vmax=1, aspect="auto")
        texts = self._texts
        source = [str(i) if self._ids else texts.source.piece(i) for i in line.result.source_tokens]
        target = [str(i) if self._ids else texts.target.piece(i) for i in best.tokens]
        axes.set_xticks(range(columns), source, rotation=60, ha="left", rotation_mode="anchor")
        axes.set_yticks(range(rows), target)
        axes.xaxis.tick_top()
        axes.set_xlabel("source")
        axes.set_ylabel("target")
        figure.colorbar(picture, label="attention")
        path = self._name(line.number)
        with naming(path):
            figure.savefig(path, dpi=150)
        if line.number == MAX_IMAGES:
            click.echo(f"--attention-plot: drew the first {MAX_IMAGES} lines.", err=True)

    def _name(self, number: int) -> Path:
        if number == 1:
            return self._path
        return self._path.with_stem(f"{self._path.stem}-{number}")
