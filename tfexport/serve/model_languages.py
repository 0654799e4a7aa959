"""The languages that a model reads and writes, if they are known."""

from collections.abc import Sequence
from dataclasses import dataclass

from tfexport.errors import ConfigError, Message, Option, join_some
from tfexport.languages import Languages
from tfexport.runtime.language_tokens import LanguagePair
from tfexport.serve.language_codes import match_code
from tfexport.serve.settings import PAIR, PAIR_OF_NAME

UNKNOWN = "und"


@dataclass(frozen=True)
class ModelLanguages:
    """The languages of a model.

    Attributes:
        sources: codes that it reads; empty if unknown.
        targets: codes that it writes; empty if unknown.
        default_source: the one that it reads if the request names none.
        token_sides: the sides, "source" and "target", that have a language token.
    """

    sources: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    default_source: str | None = None
    token_sides: frozenset[str] = frozenset()

    @classmethod
    def of(cls, name: str, known: Languages | None, given: str | None) -> "ModelLanguages":
        """The languages of a model.

        Args:
            name: the name of the model; ``de-en`` is read as a pair.
            known: by its bundle.
            given: by the operator of the server, such as "de-en" or "de,fr-en".

        Raises:
            ConfigError: the bundle does not have a given language.
        """
        found = None if known is None else _of_bundle(known)
        match = PAIR.fullmatch(given) if given else PAIR_OF_NAME.fullmatch(name)
        if match is None or (found is not None and not given):
            return found or cls()
        sources, targets = (tuple(match[side].split(",")) for side in (1, 2))
        if found is not None:
            return found._restricted(name, sources, targets)
        if not given:
            sources, targets = (sources[0].lower(),), (targets[0].lower(),)
        return cls(sources, targets, sources[0] if len(sources) == 1 else None)

    def _restricted(
        self, name: str, sources: Sequence[str], targets: Sequence[str]
    ) -> "ModelLanguages":
        """These languages without the others of the bundle."""
        read, written = map(self.source, sources), map(self.target, targets)
        pairs = list(zip((*sources, *targets), (*read, *written), strict=True))
        foreign = [code for code, own in pairs if own is None]
        if foreign:
            known = join_some(sorted({*self.sources, *self.targets}), 12)
            text = f" of {name}: {join_some(foreign)} is no language of its bundle; known: {known}"
            raise ConfigError(Message(Option("languages"), text))
        own = [code for _, code in pairs if code is not None]
        kept = tuple(dict.fromkeys(own[: len(sources)]))
        only = kept[0] if len(kept) == 1 else None
        default = self.default_source if self.default_source in kept else only
        return ModelLanguages(
            kept, tuple(dict.fromkeys(own[len(sources) :])), default, self.token_sides
        )

    @property
    def unknown(self) -> bool:
        """Whether the model takes any language, because its own are unknown."""
        return not self.sources and not self.targets

    def source(self, code: str) -> str | None:
        """The model's own form of a code that it reads, or None."""
        return match_code(code, self.sources) if self.sources else code

    def target(self, code: str) -> str | None:
        """The model's own form of a code that it writes, or None."""
        return match_code(code, self.targets) if self.targets else code

    def language_pair(self, source: str | None, target: str | None) -> LanguagePair:
        """The language tokens for a request; the only language that is allowed is the default."""
        return LanguagePair(self._code("source", source), self._code("target", target))

    def _code(self, side: str, code: str | None) -> str | None:
        known: tuple[str, ...] = getattr(self, f"{side}s")
        if side not in self.token_sides:
            return None
        if code is None:
            return known[0] if len(known) == 1 else None
        return match_code(code, known) if known else code


def _of_bundle(known: Languages) -> ModelLanguages | None:
    codes = tuple(known.ids)
    sources = codes if known.source_place else tuple(filter(None, [known.source]))
    targets = codes if known.target_place else tuple(filter(None, [known.target]))
    if not sources and not targets:
        return None
    only = sources[0] if len(sources) == 1 else None
    places = (("source", known.source_place), ("target", known.target_place))
    token_sides = frozenset(side for side, place in places if place)
    return ModelLanguages(sources, targets, known.source or only, token_sides)
