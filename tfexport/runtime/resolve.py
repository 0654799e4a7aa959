"""Checks of options and prefixes against one bundle; all problems are in one message."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
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
from tfexport.graph_io import INPUT_IDS
from tfexport.runtime.model_shape import ModelShape
from tfexport.runtime.option_checks import Token, find_problems, unknown_options
from tfexport.runtime.options import DEFAULTS, SPECS, SUBJECT, DecodingOptions
from tfexport.runtime.own_defaults import with_own
from tfexport.runtime.search.resolved_options import GraphRules, ResolvedOptions
from tfexport.runtime.spoken import UNSAID, Placed, Spoken, place_languages
from tfexport.runtime.text.codec import TextCodec, check_rows

_SINGLE_TOKENS = ("first_token", "last_token")
Prefix = str | Sequence[int] | None


class Resolver:
    """Resolves options for one bundle."""

    def __init__(
        self, manifest: Manifest, texts: TextCodec, has_attention: Callable[[], bool]
    ) -> None:
        self._manifest, self._texts, self._has_attention = manifest, texts, has_attention
        self._defaults: Mapping[str, Any] = manifest.generation

    def with_defaults(self, given: Mapping[str, Any]) -> "Resolver":
        """A resolver with other defaults over the bundle's own.

        Args:
            given: options of ``DecodingOptions``.

        Raises:
            ConfigError: something is wrong with them.
        """
        self.resolve(given, spoken=Spoken(as_ids=True))  # ids need no language
        made = Resolver(self._manifest, self._texts, self._has_attention)
        made._defaults = with_own(self._manifest.generation, given)
        return made

    def resolve(
        self,
        keywords: Mapping[str, Any],
        prefixes: Iterable[Prefix] = (),
        extra: Sequence[Problem] = (),
        spoken: Spoken = UNSAID,
        own_defaults: bool = True,
    ) -> tuple[ResolvedOptions, list[tuple[int, ...]]]:
        """Resolve the options, prefixes and languages of a call, over the bundle's own defaults.

        Args:
            keywords: options of ``DecodingOptions``.
            prefixes: one for each row.
            extra: problems that the caller has found, for the same message.
            spoken: the languages of the call.
            own_defaults: whether the bundle's own defaults count.

        Raises:
            ConfigError: naming every unknown option, bad value, contradiction, unknown token and
                unknown language.
        """
        given = with_own(self._defaults if own_defaults else {}, keywords)
        problems = [*unknown_options(keywords, DEFAULTS), *find_problems(given, SPECS)]
        # Only options that are valid by themselves are checked against the bundle.
        wrong = {problem.option for problem in problems}
        sound = {name: given[name] for name in given if name in DEFAULTS and name not in wrong}
        options = {**DEFAULTS, **sound}
        problems.extend(self._model_problems(options))
        told = (options["first_token"], self._manifest.special_ids.start)
        placed = place_languages(self._manifest.languages, spoken, told)
        if placed.first is not None and "first_token" not in keywords:
            options["first_token"] = placed.first
        tokens = _Tokens(self._texts, self._manifest.limits.target_vocab_size)
        ids = self._token_ids(tokens, options)
        limit = self._manifest.limits.max_target_length
        longest = options["max_length"] if limit is None else min(options["max_length"], limit)
        checked, bad_prefixes = self._check_prefixes(prefixes, longest, ids["end_tokens"])
        problems.extend([*tokens.problems, *bad_prefixes, *placed.problems, *extra])
        if problems:
            raise ConfigError(join_problems(SUBJECT, problems))
        return self._resolved({**sound, "max_length": longest}, options, ids, placed), checked

    def _resolved(
        self,
        sound: Mapping[str, Any],
        options: Mapping[str, Any],
        ids: Mapping[str, Any],
        placed: Placed,
    ) -> ResolvedOptions:
        """Valid options by their resolved values."""
        special, seed = self._manifest.special_ids, options["seed"]
        single = {name: ids[name] for name in _SINGLE_TOKENS if ids[name] is not None}
        given = DecodingOptions(**{**sound, **single, "max_length": options["max_length"]})
        if seed is None:  # equal for equal options, unless something is drawn
            seed = int(np.random.SeedSequence().generate_state(1)[0]) if given.sampling else 0
        made = ResolvedOptions.of(
            given,
            special.decoder_start if placed.start is None else placed.start,
            ids["end_tokens"],
            sound["max_length"],
            ids["suppress_tokens"],
            ids["suppress_sequences"],
            eos_id=special.eos,
            seed=seed,
        )
        usual = placed.start in (None, special.decoder_start)
        return replace(
            made,
            suppress_first_tokens=ids["suppress_first_tokens"],
            usual_start=usual,
            framing=placed.framing,
            graph_rules=GraphRules.of(self._manifest.generation),
        )

    def _token_ids(self, tokens: "_Tokens", options: Mapping[str, Any]) -> dict[str, Any]:
        """The options that name tokens, as ids."""
        unk = self._manifest.special_ids.unk
        suppressed = tokens.many("suppress_tokens", options["suppress_tokens"])
        # The unknown token may lie outside a target vocabulary that is smaller than the source's.
        if options["disable_unk"] and unk is not None and unk < tokens.size:
            suppressed.append(unk)
        ends = tokens.many("end_tokens", options["end_tokens"])
        ids: dict[str, Any] = {
            "end_tokens": tuple(ends) or (self._manifest.special_ids.eos,),
            "suppress_tokens": tuple(suppressed),
            "suppress_first_tokens": tuple(
                tokens.many("suppress_first_tokens", options["suppress_first_tokens"])
            ),
            "suppress_sequences": tuple(
                tuple(tokens.sequence("suppress_sequences", sequence))
                for sequence in options["suppress_sequences"]
            ),
        }
        for name in _SINGLE_TOKENS:
            given = [] if options[name] is None else [options[name]]
            ids[name] = next(iter(tokens.many(name, given)), None)
        if ids["first_token"] in ids["end_tokens"]:
            tokens.problems.append(Problem("first_token", "is an end token: every row is empty"))
        return ids

    def resolve_rows(
        self,
        keywords: Mapping[str, Any],
        prefixes: Iterable[Prefix] | None,
        count: int,
        extra: Sequence[Problem] = (),
        spoken: Spoken = UNSAID,
    ) -> tuple[ResolvedOptions, list[tuple[int, ...]]]:
        """``resolve`` for a call of ``count`` rows; without prefixes all of them are empty."""
        if prefixes is None:
            return self.resolve(keywords, [None] * count, extra, spoken)
        given: list[Prefix] = []
        try:
            given = check_rows("target_prefix", prefixes, "prefixes, one for each row")
        except InputError as error:
            extra = [*extra, Problem(None, error.message)]
            return self.resolve(keywords, [], extra, spoken)
        if len(given) != count:
            text = f" holds {len(given)} prefixes for {count} rows"
            extra = [*extra, Problem(None, Message(Option("target_prefix"), text))]
        return self.resolve(keywords, given, extra, spoken)

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
        io = self._manifest.module_io
        ids = io is None or INPUT_IDS in {tensor.name for tensor in io.inputs}
        if options["encoder_no_repeat_ngram_size"] and not ids:
            text = " needs a model whose source is ids"
            yield Problem(None, Message(Option("encoder_no_repeat_ngram_size"), text))
        if io is not None:
            if wants:
                yield Problem(
                    None, "attention is not in this bundle: a custom module has no such output"
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
                elif number < self.size:
                    found.append(number)
                else:
                    text = f"{token!r} is id {number}, beyond the model's {self.size} ids"
                    self.problems.append(Problem(option, text))
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
