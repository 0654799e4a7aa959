"""Comparison of text-to-text graphs, and of expected texts, with tokenizers and eager PyTorch."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from tfexport import graph_io
from tfexport.errors import ConfigError, Message, Option
from tfexport.export.parity.checkpoint import EagerCheckpoint
from tfexport.export.parity.compare import compare_texts, is_near_tie
from tfexport.export.parity.eager_run import THREADS, Eager, EagerRun, compare_each
from tfexport.export.parity.plan import read_pairs
from tfexport.export.report import EXPECTED, Comparison, ParityReport
from tfexport.export.rounding import Noise
from tfexport.export.text.text_graphs import SAMPLES, TEXTS, TRANSLATIONS, open_text_graph
from tfexport.export.text.tokenizer_files import TokenizerFiles, encode_source
from tfexport.runtime.search import truncate_at_eos
from tfexport.runtime.text.codec import NO_LANGUAGES, LanguagePair
from tfexport.runtime.translator import Translator
from tfexport.typing import PathLike, Progress, silent

BATCH = 8


def compare_text(
    path: Path,
    tokenizers: TokenizerFiles,
    eager: EagerCheckpoint,
    samples: Iterable[str] = (),
    progress: Progress = silent,
) -> ParityReport:
    """Compare a text-to-text graph with tokenizer, eager greedy decoding and detokenizer.

    Args:
        path: the path of the graph.
        tokenizers: the tokenizers of both sides, which use their own libraries.
        eager: the checkpoint that it was exported from.
        samples: texts to compare on, in addition to ``text.wrap.SAMPLES``.
        progress: called after every batch.
    """
    config = eager.config
    source, target = tokenizers.load(config)
    session = open_text_graph(path)
    limit = config.longest
    input_ids = {text: encode_source(text, source, config) for text in (*SAMPLES, *samples)}
    texts = [
        text for text, row in input_ids.items() if row and (limit is None or len(row) <= limit)
    ]

    chunks = [texts[start : start + BATCH] for start in range(0, len(texts), BATCH)]
    following = iter(chunks)

    def compare(batch: EagerRun) -> Iterator[Comparison]:
        chosen, run = next(following), eager.decode(batch, rules=eager.rules)
        expected = [
            target.decode(truncate_at_eos(row, run.special_ids.eos)) for row in run.tokens.tolist()
        ]
        # Output that ends within a UTF-8 character, as of a random model, cannot be compared.
        whole = [i for i, text in enumerate(expected) if "\ufffd" not in text]
        feeds = {
            TEXTS: np.array([chosen[i] for i in whole], dtype=object),
            graph_io.MAX_LENGTH: np.array(run.steps),
        }
        (found,) = session.run([TRANSLATIONS], feeds)
        yield compare_texts(
            run, {i: ours != expected[i] for ours, i in zip(found, whole, strict=True)}
        )

    batches = [eager.batch([input_ids[text] for text in chunk]) for chunk in chunks]
    return compare_each(eager, batches, compare, progress, "comparing text", decodes=False)


# Comparison of a bundle's texts with those that the user's own code returned.


MOST_SHOWN = 3
# From source ids and decoded tokens, start token first: whether the tokens come from a near tie of
# the eager code.
NearTie = Callable[[Sequence[int], Sequence[int]], bool]


@dataclass(frozen=True)
class Line:
    """A line whose text differs from the expected one."""

    source: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.source!r}: expected {self.expected!r}, found {self.found!r}"


def add_expected(
    report: ParityReport,
    bundle: Path,
    expect: PathLike,
    near_tie: NearTie,
    progress: Progress,
    language_pair: LanguagePair = NO_LANGUAGES,
) -> ParityReport:
    """Add the comparison of expected texts to a report.

    A line is equal if the bundle returns its text with default options, ignoring white space at
    both ends. A different line is a near tie if the two best tokens of eager PyTorch, where the
    texts first differ, are closer than the allowed difference.

    Args:
        report: the report of the other comparisons.
        bundle: the folder of the bundle.
        expect: a file whose lines are a source, a tab, and the expected text.
        near_tie: whether a text is a near tie of the eager code.
        progress: called before and after the comparison.
        language_pair: the languages of the texts.

    Raises:
        ConfigError: the bundle has no tokenizers, or needs a language.
        InputError: the file is unusable.
    """
    pairs = read_pairs(expect, "expect")
    progress("comparing expected texts", 0, 1)
    with Translator(bundle, threads=THREADS) as translator:
        if not {"source", "target"} <= set(translator.manifest.tokenizers):
            raise ConfigError(Message(
                Option("expect"), " needs a bundle with tokenizers for source and target; set "
                "them with ", Option("tokenizer"), ".",
            ))  # fmt: skip
        options, _ = translator.engine.resolver.resolve({}, language_pair=language_pair)
        results = translator.translate(
            [source for source, _ in pairs],
            source_language=language_pair.source, target_language=language_pair.target,
        )  # fmt: skip
        wrong: list[Line] = []
        ties = 0
        for (source, expected), result in zip(pairs, results, strict=True):
            found = result.text or ""
            if found.strip() == expected.strip():
                continue
            ids = translator.engine.texts.encode(source, framing=options.framing)
            if near_tie(ids, [options.bos_id, *result.hypotheses[0].tokens]):
                ties += 1
            else:
                wrong.append(Line(source, expected, found))
    progress("comparing expected texts", 1, 1)
    longest = max(len(source.split()) for source, _ in pairs)
    compared = Comparison(
        EXPECTED, len(pairs), longest, float(len(wrong)), len(pairs), ties, inputs=str(expect)
    )
    return replace(
        report,
        comparisons=[*report.comparisons, compared],
        unexpected=tuple(str(line) for line in wrong[:MOST_SHOWN]),
    )


def near_tie_of(eager: Eager, report: ParityReport) -> NearTie:
    """Find near ties in eager code, with the noise that a report measured."""
    noise = Noise(logits=max((c.noise for c in report.comparisons), default=0.0))

    @torch.no_grad()
    def near_tie(ids: Sequence[int], prefix: Sequence[int]) -> bool:
        return any(is_near_tie(of_token, noise) for of_token in eager.follow(ids, prefix))

    return near_tie
