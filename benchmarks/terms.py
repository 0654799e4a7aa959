"""Rows with terms beside the same rows without: python -m benchmarks.terms.

Rows are drawn from the demo model's test set, each with one to three terms of its reference. A
source word and a reference word are a term if the model that reads the reference attends there to
the source word; this is kinder than a glossary, as the reference is known to fit. Runs with and
without take turns; CPU time is measured, with one thread.
"""

import random
import re
import time
from pathlib import Path
from statistics import median

import click
import numpy as np
import sacrebleu

from benchmarks.startup import machine
from tfexport.runtime import Translator
from tfexport.runtime.model.engine_name import EngineName
from tfexport.runtime.model.interface import Floats
from tfexport.runtime.results import TranslationResult
from tfexport.runtime.terms import Terms, words_of_tokens, written_words

BUNDLE, TESTS = Path("examples/de-en.bundle"), Path("examples/de-en/test.tsv")
CLEARLY = 0.35  # of the attention of a reference's word
WORD = re.compile(r"[A-Za-z'-]{3,}")
NAMES = ("Tom", "Mary", "Boston")  # keep their capital letter
Row = tuple[str, str, list[tuple[str, str]]]  # source, reference, terms


def draw_rows(translator: Translator, count: int, seed: int = 1) -> list[Row]:
    """Sources and references, each with one to three terms."""
    draw, found = random.Random(seed), list[Row]()
    lines = TESTS.read_text(encoding="utf-8").splitlines()
    pairs = [line.split("\t") for line in lines]
    draw.shuffle(pairs)
    scored = translator.score(
        [source for source, _ in pairs], [target for _, target in pairs], return_attention=True
    )
    for (source, target), made in zip(pairs, scored, strict=True):
        assert made.attention is not None
        terms = terms_of(translator, source, target, made.attention)
        if terms:
            chosen = draw.sample(terms, min(len(terms), draw.randint(1, 3)))
            found.append((source, target, chosen))
        if len(found) == count:
            break
    return found


def terms_of(
    translator: Translator,
    source: str,
    target: str,
    attention: Floats,
) -> list[tuple[str, str]]:
    """Words of a source, and the words of its reference that attend to them."""
    texts, bounds = translator.engine.texts, translator.engine.term_tokens.boundaries
    words, surfaces = written_words(source), texts.surfaces(source)
    tokens = texts.encode_target(target)
    pooled = np.zeros((len(tokens), len(words)))
    # The first source token is the start token.
    for place, word in enumerate(words_of_tokens(words, surfaces)):
        pooled[:, word] += attention[: len(tokens), place + 1]
    starts = [
        place for place, token in enumerate(tokens)
        if not place or bounds is None
        or not (bounds.continues(token) or bounds.opens(tokens[place - 1]))
    ]  # fmt: skip
    found: dict[str, str] = {}
    for first, end in zip(starts, [*starts[1:], len(tokens)], strict=True):
        written = re.sub(r"[^\w'-]", "", texts.decode(tokens[first:end]))
        shares = pooled[first:end].mean(0)
        source_word = words[int(shares.argmax())]
        if not WORD.fullmatch(written) or shares.max() <= CLEARLY:
            continue
        if len(source_word) < 3 or not source_word.isalpha():
            continue
        if not first and written[1:].islower() and written not in NAMES:
            written = written[:1].lower() + written[1:]
        found.setdefault(source_word, written)
    return list(found.items())


def bleu(found: list[TranslationResult], rows: list[Row]) -> float:
    """BLEU of translations beside the references."""
    texts = [result.text or "" for result in found]
    return float(sacrebleu.corpus_bleu(texts, [[target for _, target, _ in rows]]).score)


@click.command()
@click.option("--engine", "engines", multiple=True, default=["native", "onnxruntime"],
              show_default=True)  # fmt: skip
@click.option("--beam", "beams", multiple=True, default=[1, 4], show_default=True)
@click.option("--rows", "count", default=500, show_default=True)
@click.option("--batch", default=30, show_default=True, help="Rows of a batch.")
@click.option("--rounds", default=3, show_default=True)
def main(engines: list[EngineName], beams: list[int], count: int, batch: int, rounds: int) -> None:
    """Measure what terms cost."""
    drawn: list[Row] = []
    click.echo(
        f"{machine()}\n\n| engine, beams | rows a second | with terms | ratio | every other row | "
        "lack some | BLEU | with terms |\n|---|---|---|---|---|---|---|---|"
    )
    for engine in engines:
        with Translator(BUNDLE, threads=1, engine=engine) as translator:
            drawn = drawn or draw_rows(translator, count)
            sources = [source for source, _, _ in drawn]
            terms: list[Terms | None] = [Terms.of(pairs) for _, _, pairs in drawn]
            half = [each if row % 2 else None for row, each in enumerate(terms)]
            for beam in beams:
                taken: list[list[float]] = [[], [], []]
                found: list[list[TranslationResult]] = [[], [], []]
                for turn in range(rounds + 1):  # the first fills caches
                    for way, given in enumerate((None, terms, half)):
                        start = time.process_time()
                        found[way] = translator.translate(
                            sources, terms=given, beam_size=beam, batch_size=batch
                        )
                        if turn:
                            taken[way].append(time.process_time() - start)
                plain, full, some = map(median, taken)
                lacking = sum(bool(result.unmet_terms) for result in found[1])
                click.echo(
                    f"| {engine}, {beam} | {len(drawn) / plain:,.0f} | {len(drawn) / full:,.0f} | "
                    f"{plain / full:.2f} | {plain / some:.2f} | {lacking} | "
                    f"{bleu(found[0], drawn):.1f} | {bleu(found[1], drawn):.1f} |"
                )


if __name__ == "__main__":
    main()
