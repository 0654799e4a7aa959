"""Decoding options of requests, resolved; most requests ask for the same ones."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tfexport.errors import Problem
from tfexport.runtime.options import DEFAULTS
from tfexport.runtime.resolve import Prefix, Resolver
from tfexport.runtime.search import ResolvedOptions
from tfexport.runtime.spoken import Spoken
from tfexport.serve.failures import loggable

loggable(DEFAULTS)
_MOST = 256  # different ones that are kept
_LONGEST = 2000  # characters of options that are kept


class OptionCache:
    """The options that one model was asked for of late."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._known: dict[tuple[str, Spoken], ResolvedOptions] = {}

    def resolve(
        self,
        given: Mapping[str, Any],
        prefixes: Sequence[Prefix],
        problems: Sequence[Problem],
        spoken: Spoken,
    ) -> tuple[ResolvedOptions, list[tuple[int, ...]]]:
        """See ``Resolver.resolve``; options are JSON values.

        Raises:
            ConfigError: something is wrong with them.
        """
        plain = not problems and not any(prefix is not None for prefix in prefixes)
        key = (json.dumps(given, sort_keys=True), spoken)
        found = self._known.get(key)  # once: another thread may forget it
        if plain and found is not None:
            return found, [()] * len(prefixes)
        options, ids = self._resolver.resolve(given, prefixes, problems, spoken)
        # What is drawn is drawn anew for every request that names no seed.
        if plain and not options.sampling and len(key[0]) <= _LONGEST:
            if len(self._known) >= _MOST:
                self._known.clear()
            self._known[key] = options
        return options, ids
