"""Resolving options, prefixes and languages of a call for one bundle.

A bundle may have its own defaults; a caller's options override them. All problems are in one
message.
"""

import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tfexport.bundle import Manifest
from tfexport.errors import (
    BundleError,
    ConfigError,
    InputError,
    Message,
    Option,
    Problem,
    TokenizerError,
    join_problems,
)
from tfexport.graph_io import INPUT_IDS
from tfexport.runtime.options import (
    ATTENTION_OPTIONS,
    DEFAULTS,
    NEEDS_BEAM,
    NEEDS_SAMPLING,
    OWN_RULES,
    SUBJECT,
    TRANSFORMERS_RULES,
    Token,
    check_options,
    is_integer,
)
from tfexport.runtime.search.request import GraphRules, ResolvedOptions
from tfexport.runtime.text.codec import (
    NO_LANGUAGES,
    LanguagePair,
    TextCodec,
    check_rows,
    find_language_tokens,
)

_TOKEN_LISTS = ("suppress_tokens", "end_tokens", "suppress_first_tokens")
_SINGLE_TOKENS = ("first_token", "last_token")
_MOST_CHECKED = 256  # different options that are kept
_SIMPLE = (bool, int, float, str, type(None))
_LONG = 100  # characters
_OF_GROUPS = "diversity_penalty"  # needs ``beam_groups``
Prefix = str | Sequence[int] | None


class Resolver:
    """Resolves options for one bundle."""

    def __init__(
        self,
        manifest: Manifest,
        texts: TextCodec,
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        """Prepare for a bundle.

        Args:
            manifest: the manifest of the bundle.
            texts: its tokenizers.
            defaults: defaults of options by name; None for the bundle's own.
        """
        self._manifest, self._texts = manifest, texts
        self._defaults = manifest.generation if defaults is None else defaults
        self._graph_rules = GraphRules.of(manifest.generation)
        self._start, self._io = manifest.special_ids.decoder_start, manifest.module_io
        # See _key_of. The newest stay: a client that sends many different ones slows only itself.
        self._checked = OrderedDict[Hashable, ResolvedOptions]()
        self._keeping = threading.Lock()

    def with_defaults(self, given: Mapping[str, Any]) -> "Resolver":
        """Return a resolver with further defaults, which override the bundle's own.

        Args:
            given: options of ``DecodingOptions``.

        Raises:
            ConfigError: they are invalid.
        """
        self.resolve(given, language_pair=LanguagePair(as_ids=True))  # ids need no language
        defaults = with_own(self._manifest.generation, given)
        return Resolver(self._manifest, self._texts, defaults)

    def resolve(
        self,
        keywords: Mapping[str, Any],
        prefixes: Iterable[Prefix] = (),
        extra: Sequence[Problem] = (),
        language_pair: LanguagePair = NO_LANGUAGES,
        own_defaults: bool = True,
    ) -> tuple[ResolvedOptions, list[tuple[int, ...]]]:
        """Resolve the options, prefixes and languages of a call, over the bundle's own defaults.

        Args:
            keywords: options of ``DecodingOptions``.
            prefixes: one for each row.
            extra: problems of the caller, for the same message.
            language_pair: the languages of the call.
            own_defaults: whether the bundle's own defaults count.

        Raises:
            ConfigError: naming every unknown option, bad value, contradiction, unknown token and
                unknown language.
        """
        options, found = self._check_once(keywords, language_pair, own_defaults)
        checked, bad_prefixes = self._check_prefixes(prefixes, options)
        problems = [*found, *bad_prefixes, *extra]
        if problems:
            raise ConfigError(join_problems(SUBJECT, problems))
        if options.sampling and "seed" not in options.given:
            seed = int(np.random.SeedSequence().generate_state(1)[0])
            options = replace(options, seed=seed)
        return options, checked

    def _check_once(
        self, keywords: Mapping[str, Any], language_pair: LanguagePair, own_defaults: bool
    ) -> tuple[ResolvedOptions, list[Problem]]:
        """``_check``, or what it found the last time; only what had no problems is kept."""
        key = _key_of(keywords, language_pair, own_defaults)
        with self._keeping:
            if key is not None and key in self._checked:
                self._checked.move_to_end(key)
                return self._checked[key], []
        options, problems = self._check(
            keywords, self._defaults if own_defaults else {}, language_pair
        )
        if key is not None and not problems:
            with self._keeping:
                self._checked[key] = options
                if len(self._checked) > _MOST_CHECKED:
                    self._checked.popitem(last=False)
        return options, problems

    def _check(
        self, keywords: Mapping[str, Any], defaults: Mapping[str, Any], language_pair: LanguagePair
    ) -> tuple[ResolvedOptions, list[Problem]]:
        """Resolve valid options and languages, and return the problems of the others."""
        manifest = self._manifest
        changed, problems = check_options(with_own(defaults, keywords))
        problems.extend(self._model_problems(changed))
        tokens = _Tokens(self._texts, manifest.limits.target_vocab_size)
        ids = self._token_ids(tokens, changed)
        special, limit = manifest.special_ids, manifest.limits.max_target_length
        given = (ids.get("first_token"), special.start)
        language_tokens = find_language_tokens(manifest.languages, language_pair, given)
        if language_tokens.first is not None and "first_token" not in keywords:
            ids["first_token"] = language_tokens.first
        longest = changed.get("max_length", DEFAULTS["max_length"])
        bounded = {"max_length": longest if limit is None else min(longest, limit)}
        start = language_tokens.start
        options = ResolvedOptions(
            **{**changed, **ids, **bounded},
            bos_id=self._start if start is None else start,
            usual_start=start in (None, self._start),
            eos_id=special.eos,
            graph_rules=self._graph_rules,
            framing=language_tokens.framing,
            attention_heads=self._attention_heads(changed),
            given={**changed, **{name: ids[name] for name in _SINGLE_TOKENS if name in ids}},
        )
        problems.extend([*tokens.problems, *language_tokens.problems])
        if options.first_token in options.end_tokens:
            problems.append(Problem("first_token", "is an end token: every row is empty"))
        return options, problems

    def _token_ids(self, tokens: "_Tokens", changed: Mapping[str, Any]) -> dict[str, Any]:
        """The options that name tokens, as ids."""
        ids: dict[str, Any] = {
            name: tuple(tokens.many(name, changed[name]))
            for name in _TOKEN_LISTS
            if name in changed
        }
        if "suppress_sequences" in changed:
            ids["suppress_sequences"] = tuple(
                tuple(tokens.sequence("suppress_sequences", sequence))
                for sequence in changed["suppress_sequences"]
            )
        for name in _SINGLE_TOKENS:
            if name in changed:
                ids[name] = next(iter(tokens.many(name, [changed[name]])), None)
        # The unknown token may be outside a target vocabulary that is smaller than the source's.
        unk = self._manifest.special_ids.unk
        if "disable_unk" in changed and unk is not None and unk < tokens.size:
            ids["suppress_tokens"] = (*ids.get("suppress_tokens", ()), unk)
        if not ids.get("end_tokens"):
            ids["end_tokens"] = (self._manifest.special_ids.eos,)
        return ids

    def resolve_rows(
        self,
        keywords: Mapping[str, Any],
        prefixes: Iterable[Prefix] | None,
        count: int,
        extra: Sequence[Problem] = (),
        language_pair: LanguagePair = NO_LANGUAGES,
    ) -> tuple[ResolvedOptions, list[tuple[int, ...]]]:
        """``resolve`` for a call of ``count`` rows; without prefixes all of them are empty."""
        if prefixes is None:
            return self.resolve(keywords, [None] * count, extra, language_pair)
        given: list[Prefix] = []
        try:
            given = check_rows("target_prefix", prefixes, "prefixes, one for each row")
        except InputError as error:
            extra = [*extra, Problem(None, error.message)]
            return self.resolve(keywords, [], extra, language_pair)
        if len(given) != count:
            text = f" holds {len(given)} prefixes for {count} rows"
            extra = [*extra, Problem(None, Message(Option("target_prefix"), text))]
        return self.resolve(keywords, given, extra, language_pair)

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
                Message(f"{len(ids)} tokens exceed ", Option("max_length"), f" {max_length}")
            )
        ended = [token for token in ids if token in end_tokens]
        if ended:
            raise InputError(f"holds the end token {ended[0]}")
        return tuple(ids)

    def _check_prefixes(
        self, prefixes: Iterable[Prefix], options: ResolvedOptions
    ) -> tuple[list[tuple[int, ...]], list[Problem]]:
        checked, problems = list[tuple[int, ...]](), list[Problem]()
        for row, prefix in enumerate(prefixes):
            if prefix is None:
                checked.append(())
                continue
            try:
                checked.append(self.check_prefix(prefix, options.max_length, options.end_tokens))
            except InputError as error:
                where = Message(Option("target_prefix"), f" of row {row}: ")
                problems.append(Problem(None, Message(where, error.message)))
        return checked, problems

    def _model_problems(self, changed: Mapping[str, Any]) -> Iterator[Problem]:
        unk = self._manifest.special_ids.unk
        for name in ("disable_unk", "replace_unknowns"):
            if name in changed and unk is None:
                yield Problem(None, Message(Option(name), " needs a model with an unk_id"))
        io, shape = self._io, self._manifest.attention_shape
        if (
            io is not None
            and "encoder_no_repeat_ngram_size" in changed
            and INPUT_IDS not in {tensor.name for tensor in io.inputs}
        ):
            text = " needs a model whose source is ids"
            yield Problem(None, Message(Option("encoder_no_repeat_ngram_size"), text))
        if shape is None:
            if changed.keys() & ATTENTION_OPTIONS:
                yield Problem(
                    None, "attention is not in this bundle: a custom module has no such output"
                )
            return
        if io is not None and "coverage_penalty" in changed:
            text = " needs attention at every step, which a custom module does not give"
            yield Problem(None, Message(Option("coverage_penalty"), text))
        if changed.keys() & {"attention_layer", "attention_head"}:
            yield from _position_problems(changed, *shape)

    def _attention_heads(self, changed: Mapping[str, Any]) -> tuple[tuple[int, int], ...]:
        """Layer and number of the heads that the options of a call choose."""
        layers, heads = self._manifest.attention_shape or (0, 0)
        layer, head = changed.get("attention_layer", -1), changed.get("attention_head")
        if not -layers <= layer < layers:  # a problem of its own, or no attention
            return ()
        numbers = range(heads) if head is None else [head]
        return tuple((range(layers)[layer], number) for number in numbers)


def _position_problems(changed: Mapping[str, Any], layers: int, heads: int) -> Iterator[Problem]:
    """The problems of a layer or head that the model does not have."""
    layer, head = changed.get("attention_layer", -1), changed.get("attention_head")
    if not -layers <= layer < layers:
        text = f" {layer} is not in a decoder of {layers} layers"
        yield Problem(None, Message(Option("attention_layer"), text))
    if head is not None and head >= heads:
        text = f" {head} is not one of {heads} heads (from 0)"
        yield Problem(None, Message(Option("attention_head"), text))


def _key_of(
    keywords: Mapping[str, Any], language_pair: LanguagePair, own_defaults: bool
) -> Hashable | None:
    """A key of a call, so that equal options are checked once; None if they are not simple."""
    pair = {"source": language_pair.source, "target": language_pair.target}
    values = (*keywords.items(), *pair.items())
    # With types: True, 1 and 1.0 are equal, and not all of them are right.
    key = tuple((name, type(value), value) for name, value in values)
    for _, kind, value in key:
        if kind not in _SIMPLE or (kind is str and len(value) > _LONG):
            return None
    return (*key, language_pair.as_ids, own_defaults)


def check_own(generation: Mapping[str, Any], name: str) -> None:
    """Check the bounds and contradictions of a bundle's defaults.

    Args:
        generation: option to default.
        name: the name of the bundle, for messages.

    Raises:
        BundleError: naming every value out of bounds, and every contradiction.
    """
    problems = check_options(with_own(generation, {}))[1]
    if problems:
        raise BundleError(join_problems(f"{name}: its decoding defaults", problems))


def with_own(generation: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Add a bundle's own defaults to the options of a call.

    The caller's options override. Defaults that have no effect with the caller's options are
    omitted, so that they never contradict them.

    Args:
        generation: option to default.
        given: options of the call, which may be invalid.
    """
    if not generation:
        return {**given}
    own = {name: value for name, value in generation.items() if name not in given}
    for drop in (_without_search, _without_rules, _without_settings, _without_length):
        for name in drop(own, given):
            own.pop(name, None)
    return {**own, **given}


def _value(name: str, own: Mapping[str, Any], given: Mapping[str, Any]) -> Any:
    return given.get(name, own.get(name, DEFAULTS[name]))


def _above_one(value: Any) -> bool:
    return is_integer(value) and value > 1


def _without_search(own: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[str, ...]:
    """The bundle's beam or sampling, if the caller's options exclude it."""
    dropped = []
    if given.get("sampling") is True or given.get("callback") is not None:
        dropped.append("beam_size")
    if _above_one(given.get("beam_size")):
        dropped.append("sampling")
    return tuple(dropped)


def _without_rules(own: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[str, ...]:
    """The rules that the caller's options exclude, and the options of those rules."""
    of_own_rules = (*OWN_RULES, _OF_GROUPS)
    if any(given.get(name, DEFAULTS[name]) != DEFAULTS[name] for name in of_own_rules):
        return ("search_rules", "early_stopping", *TRANSFORMERS_RULES)
    by_own_rules = _value("search_rules", own, given) == "tfexport"
    return TRANSFORMERS_RULES if by_own_rules else of_own_rules


def _without_settings(own: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[str, ...]:
    """Options of beam search without a beam, and of sampling without sampling."""
    beam, sampling = _value("beam_size", own, given), _value("sampling", own, given)
    dropped = [] if sampling is True else [*NEEDS_SAMPLING]
    if not _above_one(beam):
        dropped += [*NEEDS_BEAM, _OF_GROUPS]
    if given.get("early_stopping") is True:
        dropped.append("exhaustive")
    several = _value("num_hypotheses", own, given)
    found = is_integer(beam) and is_integer(several) and several <= beam
    if sampling is not True and given.get("return_alternatives") is not True and not found:
        dropped.append("num_hypotheses")
    return tuple(dropped)


def _without_length(own: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[str, ...]:
    """The bundle's limit of length that the caller's other limit contradicts."""
    least, most = _value("min_length", own, given), _value("max_length", own, given)
    if is_integer(least) and is_integer(most) and least > most:
        return ("min_length",) if "max_length" in given else ("max_length",)
    return ()


class _Tokens:
    """Converts the tokens in options to ids, and collects problems."""

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
                    text = problem or f"{token!r} is not a token of the vocabulary"
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
