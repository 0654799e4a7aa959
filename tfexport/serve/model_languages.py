"""The languages that a model reads and writes, as far as they are known."""

from collections.abc import Sequence
from dataclasses import dataclass

from tfexport.languages import Languages
from tfexport.runtime.spoken import Spoken
from tfexport.serve.language_names import base_of
from tfexport.serve.settings import PAIR

UNKNOWN = "und"


@dataclass(frozen=True)
class ModelLanguages:
    """The languages of a model.

    Attributes:
        sources: codes that it reads; empty if unknown.
        targets: codes that it writes; empty if unknown.
        default_source: the one that it reads where nobody says which.
        told: sides, "source" and "target", of which the model has to be told the language.
    """

    sources: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    default_source: str | None = None
    told: frozenset[str] = frozenset()

    @classmethod
    def of(cls, name: str, known: Languages | None, pair: str | None) -> "ModelLanguages":
        """The languages of a model.

        Args:
            name: of the model; ``de-en`` says a pair.
            known: by its bundle.
            pair: that the operator of the server gives, such as "de-en".
        """
        if known is not None and (found := _of_bundle(known)):
            return found
        match = PAIR.fullmatch(pair or name)
        if match is None:
            return cls()
        source, target = match[1].lower(), match[2].lower()
        return cls((source,), (target,), source)

    @property
    def unknown(self) -> bool:
        """Whether the model takes any language, as nobody knows which are its own."""
        return not self.sources and not self.targets

    def source(self, code: str) -> str | None:
        """The model's own form of a code that it reads, or None."""
        return _match(code, self.sources)

    def target(self, code: str) -> str | None:
        """The model's own form of a code that it writes, or None."""
        return _match(code, self.targets)

    def spoken(self, source: str | None, target: str | None) -> Spoken:
        """The languages that the model is told where these are asked for."""
        return Spoken(
            self.source(source) if source and "source" in self.told else None,
            self.target(target) if target and "target" in self.told else None,
        )


def _of_bundle(known: Languages) -> ModelLanguages | None:
    codes = tuple(known.ids)
    sources = codes if known.source_place else tuple(filter(None, [known.source]))
    targets = codes if known.target_place else tuple(filter(None, [known.target]))
    if not sources and not targets:
        return None
    only = sources[0] if len(sources) == 1 else None
    places = (("source", known.source_place), ("target", known.target_place))
    told = frozenset(side for side, place in places if place)
    return ModelLanguages(sources, targets, known.source or only, told)


def _match(code: str, known: Sequence[str]) -> str | None:
    """The known code that is the same but for case, or else but for the region."""
    if not known:
        return code
    plain = {name.lower().replace("_", "-"): name for name in reversed(known)}
    bases = {base_of(name): name for name in reversed(known)}
    return plain.get(code.lower().replace("_", "-")) or bases.get(base_of(code))
