"""Options and prefixes, checked against one bundle: every problem in one message."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tfexport.bundle import Manifest
from tfexport.errors import ConfigError, InputError, TokenizerError, join_problems
from tfexport.runtime.options import (
    SUBJECT,
    DecodingOptions,
    Token,
    find_problems,
    unknown_options,
)
from tfexport.runtime.search.resolved_options import ResolvedOptions
from tfexport.runtime.text.codec import Texts

Prefix = str | Sequence[int] | None


class Resolver:
    """Resolves options for one bundle."""

    def __init__(self, manifest: Manifest, texts: Texts, has_attention: Callable[[], bool]) -> None:
        self._manifest, self._texts, self._has_attention = manifest, texts, has_attention

    def resolve(
        self,
        keywords: Mapping[str, Any],
        prefixes: Iterable[Prefix] = (),
        extra: Sequence[str] = (),
    ) -> tuple[ResolvedOptions, list[tuple[int, ...]]]:
        """Resolved options and prefixes.

        Args:
            keywords: what ``DecodingOptions`` takes.
            prefixes: one for each row.
            extra: problems that the caller has found already.

        Raises:
            ConfigError: naming every unknown option, bad value, contradiction and unknown token.
        """
        problems = [*unknown_options(keywords), *find_problems(keywords)]
        if problems:
            # Only what is right on its own can be held against the bundle.
            sound = {
                name: value
                for name, value in keywords.items()
                if not [*unknown_options({name: value}), *_bad(name, value)]
            }
        else:
            sound = dict(keywords)
        options = _Loose(sound)
        tokens = _Tokens(self._texts, self._manifest.limits.target_vocab_size)
        problems.extend(self._model_problems(options))
        own_end = self._manifest.special_ids.eos
        ends = tuple(tokens.many("end_tokens", options["end_tokens"])) or (own_end,)
        suppressed = tokens.many("suppress_tokens", options["suppress_tokens"])
        unk = self._manifest.special_ids.unk
        # A target vocabulary that is smaller than the source's may not hold it.
        if options["disable_unk"] and unk is not None and unk < tokens.size:
            suppressed.append(unk)
        sequences = [
            tuple(tokens.sequence("suppress_sequences", sequence))
            for sequence in options["suppress_sequences"]
        ]
        limit = self._manifest.limits.max_target_length
        longest = options["max_length"] if limit is None else min(options["max_length"], limit)
        checked = []
        for row, prefix in enumerate(prefixes):
            try:
                checked.append(self.check_prefix(prefix, longest, ends))
            except InputError as error:
                tokens.problems.append(f"target_prefix of row {row}: {error}")
        problems.extend([*tokens.problems, *extra])
        if problems:
            raise ConfigError(join_problems(SUBJECT, problems))
        seed = options["seed"]
        return (
            ResolvedOptions.of(
                DecodingOptions(**sound),
                self._manifest.special_ids.bos,
                ends,
                longest,
                tuple(suppressed),
                tuple(sequences),
                own_end=ends == (own_end,),
                seed=int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else seed,
            ),
            checked,
        )

    def check_prefix(
        self, prefix: Prefix, max_length: int, end_tokens: Sequence[int]
    ) -> tuple[int, ...]:
        """The ids of one prefix; None is an empty one.

        Raises:
            InputError: unknown ids, an end token, or more tokens than ``max_length``.
        """
        ids = self._texts.encode_target(prefix) if prefix is not None else []
        if len(ids) > max_length:
            raise InputError(f"{len(ids)} tokens are more than max_length {max_length}")
        ended = [token for token in ids if token in end_tokens]
        if ended:
            raise InputError(f"holds the end token {ended[0]}")
        return tuple(ids)

    def _model_problems(self, options: "_Loose") -> Iterator[str]:
        config, unk = self._manifest.config, self._manifest.special_ids.unk
        for name in ("disable_unk", "replace_unknowns"):
            if options[name] and unk is None:
                yield f"{name} needs a model with an unk_id"
        wants = options["return_attention"] or options["replace_unknowns"]
        if (wants or options["coverage_penalty"]) and not self._has_attention():
            yield ("attention is not in this bundle, which an older tfexport made; export it again")
        layers, heads = config["num_decoder_layers"], config["num_heads"]
        layer, head = options["attention_layer"], options["attention_head"]
        if not -layers <= layer < layers:
            yield f"attention_layer {layer} is not in a decoder of {layers} layers"
        if head is not None and head >= heads:
            yield f"attention_head {head} is not one of {heads} heads (from 0)"


class _Loose:
    """Options that stand on their own, though not all together."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def __getitem__(self, name: str) -> Any:
        return self._values.get(name, getattr(DecodingOptions, name))


def _bad(name: str, value: Any) -> list[str]:
    return [problem for problem in find_problems({name: value}) if problem.startswith(f"{name}: ")]


class _Tokens:
    """Tokens of options to ids, collecting what cannot be."""

    def __init__(self, texts: Texts, size: int) -> None:
        self._texts, self.size = texts, size
        self.problems: list[str] = []

    def many(self, option: str, tokens: Iterable[Token]) -> list[int]:
        """Ids, or pieces that the vocabulary holds."""
        found = []
        for token in tokens:
            problem = None
            if isinstance(token, str):
                try:
                    number = self._texts.target.find(token)
                except TokenizerError as error:
                    number, problem = None, str(error)
                if number is None:
                    self.problems.append(
                        f"{option}: {problem or f'{token!r} is no token of the vocabulary'}"
                    )
                else:
                    found.append(number)
            elif 0 <= token < self.size:
                found.append(int(token))
            else:
                self.problems.append(
                    f"{option}: id {token} is not in the vocabulary (0 to {self.size - 1})"
                )
        return found

    def sequence(self, option: str, sequence: Sequence[Token] | str) -> list[int]:
        """Tokens, or a text."""
        if not isinstance(sequence, str):
            return self.many(option, sequence)
        try:
            found = self._texts.encode_target(sequence)
        except (InputError, TokenizerError) as error:
            self.problems.append(f"{option}: {error}")
            return []
        if not found:
            self.problems.append(f"{option}: {sequence!r} holds no token")
        return found
