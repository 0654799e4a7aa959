"""Comparison of text-to-text graphs, and of expected texts, with tokenizers and eager PyTorch."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from tfexport import graph_io
from tfexport.errors import ConfigError, Message, Option
from tfexport.export.parity.compare import compare_texts, is_near_tie
from tfexport.export.parity.eager_run import THREADS, Eager, make_case, run_batches
from tfexport.export.parity.plan import read_pairs
from tfexport.export.report import EXPECTED, Comparison, ParityReport
from tfexport.export.rounding import Noise
from tfexport.export.text.text_graphs import SAMPLES, TEXTS, TRANSLATIONS, open_text_graph
from tfexport.export.text.tokenizer_files import TokenizerFiles, encode_source
from tfexport.model_src.checkpoint.checkpoint import Checkpoint
from tfexport.runtime.search import truncate_at_eos
from tfexport.runtime.text.codec import NO_LANGUAGES, LanguagePair
from tfexport.runtime.translator import Translator
from tfexport.typing import PathLike, Progress

BATCH = 8


def compare_text(
    path: Path,
    tokenizers: TokenizerFiles,
    checkpoint: Checkpoint,
    samples: Iterable[str] = (),
    progress: Progress | None = None,
) -> ParityReport:
    """Compare a text-to-text graph with tokenizer, eager greedy decoding and detokenizer.

    Args:
        path: the path of the graph.
        tokenizers: the tokenizers of both sides, which use their own libraries.
        checkpoint: the checkpoint that it was exported from.
        samples: texts to compare on, in addition to ``text.wrap.SAMPLES``.
        progress: called after every batch.
    """
    config = checkpoint.config
    source, target = tokenizers.load(config)
    session = open_text_graph(path)
    limit = config.longest
    input_ids = {text: encode_source(text, source, config) for text in (*SAMPLES, *samples)}
    texts = [
        text for text, row in input_ids.items() if row and (limit is None or len(row) <= limit)
    ]

    def compare(eager: Eager, chosen: list[str]) -> Iterator[Comparison]:
        case = make_case([input_ids[text] for text in chosen], config)
        run = eager.decode(case, eager.rules)
        expected = [
            target.decode(truncate_at_eos(row, run.special_ids.eos)) for row in run.tokens.tolist()
        ]
        # Output that ends within a UTF-8 character, as of a random model, cannot be compared.
        whole = [i for i, text in enumerate(expected) if "\ufffd" not in text]
        feeds = {
            TEXTS: np.array([chosen[i] for i in whole], dtype=object),
            graph_io.MAX_LENGTH: np.array(run.tokens.shape[1]),
        }
        (found,) = session.run([TRANSLATIONS], feeds)
        yield compare_texts(
            run, {i: ours != expected[i] for ours, i in zip(found, whole, strict=True)}
        )

    batches = [texts[start : start + BATCH] for start in range(0, len(texts), BATCH)]
    return run_batches(checkpoint, batches, compare, progress, "comparing text")


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


def near_tie_of(checkpoint: Checkpoint, report: ParityReport) -> NearTie:
    """Find near ties in the eager code of a checkpoint, which is built on first use."""
    noise = Noise(logits=max((c.noise for c in report.comparisons), default=0.0))
    built: list[Eager] = []

    @torch.no_grad()
    def near_tie(ids: Sequence[int], prefix: Sequence[int]) -> bool:
        if not built:
            built.append(Eager.of(checkpoint))
        (eager,) = built
        case = make_case([list(ids)], eager.config)
        memory = eager.reference.encode(case.ids, case.mask)
        logits = eager.reference.decode(memory, case.mask, torch.tensor([prefix]))[0].numpy()
        return any(is_near_tie(of_token, noise) for of_token in logits)

    return near_tie
