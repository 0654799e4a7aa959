"""Checks of options and prefixes against one bundle; all problems are in one message."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tfexport.bundle import Manifest
from tfexport.errors import (
    ConfigError,
    InputError,
    Message,
    Option,
    Problem,
    TokenizerError,
    join_problems,
)
from tfexport.runtime.model_shape import ModelShape
from tfexport.runtime.option_checks import Token, find_problems, unknown_options
from tfexport.runtime.options import DEFAULTS, SPECS, SUBJECT, DecodingOptions
from tfexport.runtime.search.resolved_options import ResolvedOptions
from tfexport.runtime.text.codec import TextCodec, check_rows

Prefix = str | Sequence[int] | None


class Resolver:
    """Resolves options for one bundle."""

    def __init__(
        self, manifest: Manifest, texts: TextCodec, has_attention: Callable[[], bool]
    ) -> None:
        self._manifest, self._texts, self._has_attention = manifest, texts, has_attention

    def resolve(
        self,
        keywords: Mapping[str, Any],
        prefixes: Iterable[Prefix] = (),
        extra: Sequence[Problem] = (),
    ) -> tuple[ResolvedOptions, list[tuple[int, ...]]]:
        """Resolve the options and prefixes of a call.

        Args:
            keywords: options of ``DecodingOptions``.
            prefixes: one for each row.
            extra: problems that the caller has found, for the same message.

        Raises:
            ConfigError: naming every unknown option, bad value, contradiction and unknown token.
        """
        problems = [*unknown_options(keywords, DEFAULTS), *find_problems(keywords, SPECS)]
        # Only options that are valid by themselves are checked against the bundle.
        wrong = {problem.option for problem in problems}
        sound = {
            name: keywords[name] for name in keywords if name in DEFAULTS and name not in wrong
        }
        options = {**DEFAULTS, **sound}
        tokens = _Tokens(self._texts, self._manifest.limits.target_vocab_size)
        problems.extend(self._model_problems(options))
        eos_id = self._manifest.special_ids.eos
        ends = tuple(tokens.many("end_tokens", options["end_tokens"])) or (eos_id,)
        suppressed = tokens.many("suppress_tokens", options["suppress_tokens"])
        unk = self._manifest.special_ids.unk
        # The unknown token may lie outside a target vocabulary that is smaller than the source's.
        if options["disable_unk"] and unk is not None and unk < tokens.size:
            suppressed.append(unk)
        sequences = [
            tuple(tokens.sequence("suppress_sequences", sequence))
            for sequence in options["suppress_sequences"]
        ]
        limit = self._manifest.limits.max_target_length
        longest = options["max_length"] if limit is None else min(options["max_length"], limit)
        checked, bad_prefixes = self._check_prefixes(prefixes, longest, ends)
        problems.extend([*tokens.problems, *bad_prefixes, *extra])
        if problems:
            raise ConfigError(join_problems(SUBJECT, problems))
        seed = options["seed"]
        resolved = ResolvedOptions.of(
            DecodingOptions(**sound),
            self._manifest.special_ids.decoder_start,
            ends,
            longest,
            tuple(suppressed),
            tuple(sequences),
            eos_id=eos_id,
            seed=int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else seed,
        )
        return resolved, checked

    def resolve_rows(
        self,
        keywords: Mapping[str, Any],
        prefixes: Iterable[Prefix] | None,
        count: int,
        extra: Sequence[Problem] = (),
    ) -> tuple[ResolvedOptions, list[tuple[int, ...]]]:
        """``resolve`` for a call of ``count`` rows; without prefixes all of them are empty."""
        if prefixes is None:
            return self.resolve(keywords, [None] * count, extra)
        given: list[Prefix] = []
        try:
            given = check_rows("target_prefix", prefixes, "prefixes, one for each row")
        except InputError as error:
            return self.resolve(keywords, [], [*extra, Problem(None, error.message)])
        if len(given) != count:
            text = f" holds {len(given)} prefixes for {count} rows"
            extra = [*extra, Problem(None, Message(Option("target_prefix"), text))]
        return self.resolve(keywords, given, extra)

    def check_prefix(
        self, prefix: Prefix, max_length: int, end_tokens: Sequence[int]
    ) -> tuple[int, ...]:
        """Check one prefix and return its ids; none for None.

        Raises:
            InputError: unknown ids, an end token, or more tokens than ``max_length``.
        """
        ids = self._texts.encode_target(prefix) if prefix is not None else []
        if len(ids) > max_length:
            raise InputError(
                Message(f"{len(ids)} tokens are more than ", Option("max_length"), f" {max_length}")
            )
        ended = [token for token in ids if token in end_tokens]
        if ended:
            raise InputError(f"holds the end token {ended[0]}")
        return tuple(ids)

    def _check_prefixes(
        self, prefixes: Iterable[Prefix], longest: int, ends: tuple[int, ...]
    ) -> tuple[list[tuple[int, ...]], list[Problem]]:
        checked, problems = list[tuple[int, ...]](), list[Problem]()
        for row, prefix in enumerate(prefixes):
            try:
                checked.append(self.check_prefix(prefix, longest, ends))
            except InputError as error:
                where = Message(Option("target_prefix"), f" of row {row}: ")
                problems.append(Problem(None, Message(where, error.message)))
        return checked, problems

    def _model_problems(self, options: Mapping[str, Any]) -> Iterator[Problem]:
        unk = self._manifest.special_ids.unk
        for name in ("disable_unk", "replace_unknowns"):
            if options[name] and unk is None:
                yield Problem(None, Message(Option(name), " needs a model with an unk_id"))
        wants = options["return_attention"] or options["replace_unknowns"]
        wants = wants or options["coverage_penalty"]
        if self._manifest.module is not None:
            if wants:
                yield Problem(
                    None, "attention is not in this bundle: a module of one's own gives none"
                )
            return
        if wants and not self._has_attention():
            yield Problem(
                None,
                "attention is not in this bundle, which an older tfexport made; export it again",
            )
        shape = ModelShape.of(self._manifest)
        layers, heads = shape.num_decoder_layers, shape.num_heads
        layer, head = options["attention_layer"], options["attention_head"]
        if not -layers <= layer < layers:
            text = f" {layer} is not in a decoder of {layers} layers"
            yield Problem(None, Message(Option("attention_layer"), text))
        if head is not None and head >= heads:
            text = f" {head} is not one of {heads} heads (from 0)"
            yield Problem(None, Message(Option("attention_head"), text))


class _Tokens:
    """Converts tokens of options to ids, and collects problems."""

    def __init__(self, texts: TextCodec, size: int) -> None:
        self._texts, self.size = texts, size
        self.problems: list[Problem] = []

    def many(self, option: str, tokens: Iterable[Token]) -> list[int]:
        """Ids of tokens, which are ids or pieces of the vocabulary."""
        found = []
        for token in tokens:
            problem = None
            if isinstance(token, str):
                try:
                    number = self._texts.target.find(token)
                except TokenizerError as error:
                    number, problem = None, error.message
                if number is None:
                    text = problem or f"{token!r} is no token of the vocabulary"
                    self.problems.append(Problem(option, text))
                else:
                    found.append(number)
            elif 0 <= token < self.size:
                found.append(int(token))
            else:
                text = f"id {token} is not in the vocabulary (0 to {self.size - 1})"
                self.problems.append(Problem(option, text))
        return found

    def sequence(self, option: str, sequence: Sequence[Token] | str) -> list[int]:
        """Ids of a sequence of tokens, or of a text."""
        if not isinstance(sequence, str):
            return self.many(option, sequence)
        try:
            found = self._texts.encode_target(sequence)
        except (InputError, TokenizerError) as error:
            self.problems.append(Problem(option, error.message))
            return []
        if not found:
            self.problems.append(Problem(option, f"{sequence!r} holds no token"))
        return found
