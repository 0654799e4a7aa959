"""The models of a server: opened, chosen by name or languages, opened again when bundles change."""

import asyncio
import hashlib
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from tfexport.errors import ConfigError, Message, Option, join_some
from tfexport.manifest import MANIFEST, TRANSFORMERS
from tfexport.preprocessing import AUDIO, IMAGE
from tfexport.runtime.engine import Engine
from tfexport.runtime.media.limits import MediaLimits
from tfexport.runtime.media.sound_files import check_sound_library
from tfexport.runtime.options import DEFAULTS
from tfexport.runtime.parallel.cpu import ThreadLayout, usable_cores
from tfexport.runtime.resolve import Resolver
from tfexport.runtime.scheduler import Scheduler, SchedulerLimits, SchedulerStats
from tfexport.runtime.search import Request, ResolvedOptions
from tfexport.runtime.speech.transcriber import Transcriber
from tfexport.runtime.speech.transcription import TranscriptionOptions
from tfexport.runtime.text.codec import LanguagePair
from tfexport.runtime.text.language_codes import UNKNOWN, ModelLanguages
from tfexport.runtime.text.sentences import Join, Split, join_of
from tfexport.serve import request_log
from tfexport.serve.bodies import BodyMemory
from tfexport.serve.call import Call
from tfexport.serve.failures import RequestError, loggable, wrong
from tfexport.serve.metrics import ModelObserver
from tfexport.serve.settings import Settings

loggable(DEFAULTS)
SUFFIX = ".bundle"
_SHORT = 32  # tokens, enough for most sentences
_WHOLE = MediaLimits().seconds  # of a sound that a model takes as a whole
_SOUNDS = 4  # of the greatest length, for which there is memory at a time
_BYTES_OF_SECOND = 128 * 100 * 4  # of a sound's features: mel bins, frames, float32
_KEPT = 64  # transcribers, each of other options
TEXT, ARRAYS = "text", "arrays"  # what a model takes, beside AUDIO and IMAGE
_WORDS = {TEXT: "text", AUDIO: "sound", IMAGE: "pictures", ARRAYS: "arrays"}
_WAYS = {
    TEXT: "", AUDIO: ": POST /v1/audio/transcriptions", IMAGE: ": images in POST /v1/translate",
    ARRAYS: ", and no request holds them",
}  # fmt: skip
Observers = Callable[[str], ModelObserver]  # a setting of a model, by its name


class ServerModel:
    """An open bundle with its scheduler.

    Attributes:
        name: in requests.
        version: changes with the bundle.
        engine: the engine of the bundle.
        takes: TEXT (texts or ids), AUDIO, IMAGE, or ARRAYS, which no request holds.
        scheduler: the scheduler of its rows.
        languages: the languages that it reads and writes.
        resolver: resolves options; the operator's defaults override the bundle's.
        settings: the settings of the model.
        observer: the observer of its rows.
        split: how its texts are split if a request does not choose.
        slots: rows that it decodes at a time.
        max_queue: requests that may wait for it.
        max_tokens: the most tokens of a row.
        wordless: ids of no word: special, language and unknown tokens.
        created: when its bundle was written, in seconds since 1970.
        sounds: the memory for sounds that wait or are transcribed.
    """

    def __init__(self, name: str, path: Path, settings: Settings, observer: ModelObserver) -> None:
        """Open a bundle.

        Raises:
            TfexportError: it cannot be used.
        """
        self.name, self.version, self.observer = name, digest(path), observer
        self.settings = own = settings.of(name)
        assert own.slots is not None
        assert own.max_tokens is not None
        assert own.max_queue is not None
        self.slots, self.max_queue, self.max_tokens = own.slots, own.max_queue, own.max_tokens
        # Each thread decodes its own batch: no thread waits for another, and none spins.
        workers = own.threads or usable_cores()
        self.engine = Engine(
            path, ThreadLayout(workers, threads=1), engine=own.engine or "auto",
            media_limits=MediaLimits(min(settings.max_seconds, _WHOLE), settings.max_pixels),
        )  # fmt: skip
        manifest, io = self.engine.manifest, self.engine.manifest.module_io
        if manifest.media is not None or manifest.speech is not None:
            self.takes = manifest.media or AUDIO
        else:
            self.takes = TEXT if io is None or io.takes_ids else ARRAYS
        if manifest.media == AUDIO:
            check_sound_library(str(path))  # now, not at the first request
        self.created = int((path / MANIFEST).stat().st_mtime)
        self.sounds = BodyMemory(int(_SOUNDS * settings.max_seconds * _BYTES_OF_SECOND))
        self._most_seconds = settings.max_seconds
        self._transcribers = lru_cache(_KEPT)(self._transcriber)
        for side in manifest.tokenizers:
            getattr(self.engine.texts, side)  # loaded now, not by the first request
        self.languages = ModelLanguages.of(name, manifest.languages, own.languages)
        self.wordless = frozenset({*manifest.hidden_ids, manifest.special_ids.unk})
        reads_texts = manifest.reads == "texts"
        self.split: Split = own.split_sentences or ("none" if reads_texts else "lines")
        self.resolver = self._resolver()
        limits = SchedulerLimits(own.max_queue, own.slots)
        self.scheduler = Scheduler(self.engine, limits, observer)
        self._calls = set[Call]()
        self._retired = False

    def transcriber(self, options: TranscriptionOptions) -> Transcriber:
        """The transcriber of a Whisper model with these options; sounds of one share batches.

        Raises:
            ConfigError: options do not fit the model.
        """
        return self._transcribers(options)

    def _transcriber(self, options: TranscriptionOptions) -> Transcriber:
        return Transcriber(self.engine, options, self._most_seconds)

    def join(self, target: str) -> Join:
        """The way to join the translations of sentences in a language."""
        return join_of(target) if self.settings.join == "auto" else self.settings.join

    def described(self) -> Iterator[Message]:
        """Lines about the model, which are printed at the start."""
        reason = self.scheduler.reason
        batching = f"dynamic batching: {reason}" if reason else "continuous batching"
        yield Message(f"{self.name}: {batching}, {self.engine.model.engine}")
        options, _ = self.resolver.resolve({}, language_pair=LanguagePair(as_ids=True))
        if options.max_length <= _SHORT and "max_length" not in self.settings.decoding:
            by_default = self.engine.manifest.origins.get("max_length") == TRANSFORMERS
            yield Message(
                f"{self.name}: translations end after {options.max_length} tokens, "
                + ("transformers' default, since the model's files name no length; "
                   if by_default else "the limit of its bundle; "),
                Option("max_length"), " sets another length",
            )  # fmt: skip

    def within_limits(self, options: ResolvedOptions, given: Collection[str]) -> ResolvedOptions:
        """The options of rows after their limits are checked; the default length is the largest.

        Args:
            options: the options of the rows.
            given: names of the options in the request.

        Raises:
            RequestError: naming what is too large.
        """
        problems = []
        if options.width > self.slots:
            name = "num_hypotheses" if options.sampling else "beam_size"
            text = f"{options.width} is more than the {self.slots} rows that the server decodes"
            problems.append(f"{name}: {text}")
        longest, most = options.max_length, self.max_tokens
        if longest > most and "max_length" in given:
            problems.append(f"max_length: {longest} is more than the {most} tokens of a row here")
        if problems:
            raise wrong(problems)
        return replace(options, max_length=most) if longest > most else options

    def check_lengths(
        self, requests: Sequence[Request | None], targets: Sequence[Sequence[int]] = ()
    ) -> None:
        """Refuse sources, and targets to be scored, of too many tokens.

        Raises:
            RequestError: naming each.
        """
        problems, most = [], self.max_tokens
        for place, request in enumerate(requests):
            if request and request.length > most:
                text = f"{request.length} tokens exceed the limit of {most} per row"
                problems.append(f"row {place}: {text}")
        for place, target in enumerate(targets):
            if len(target) > most:
                text = f"{len(target)} tokens exceed the limit of {most} per row"
                problems.append(f"target {place}: {text}")
        if problems:
            raise wrong(problems)

    def _resolver(self) -> Resolver:
        given = self.settings.decoding
        if not given:
            return self.engine.resolver
        try:
            made = self.engine.resolver.with_defaults(given)
            options, _ = made.resolve({}, language_pair=LanguagePair(as_ids=True))
            self.within_limits(options, given)
        except (ConfigError, RequestError) as error:
            text = error.message
            raise ConfigError(Message(f"{self.name}: its decoding defaults: ", text)) from None
        return made

    def serve(self, call: Call) -> None:
        """Stay open until a call ends, even if retired; in the event loop's thread."""
        call.model = self.name
        self._calls.add(call)
        call.exits.callback(self._ended, call)

    def _ended(self, call: Call) -> None:
        self._calls.discard(call)
        self._close_if_unused()

    def retire(self) -> None:
        """Close the model as soon as it is unused."""
        self._retired = True
        self._close_if_unused()

    def close(self) -> None:
        """Stop its threads."""
        self.scheduler.close()
        self.engine.close()

    def _close_if_unused(self) -> None:
        if self._retired and not self._calls:
            # Joining threads takes time, and the event loop may not wait.
            asyncio.get_running_loop().run_in_executor(None, self.close)


class ServerModels:
    """The models of a server, by name, in the order in which they were given."""

    def __init__(
        self, bundles: Sequence[str | os.PathLike[str]], settings: Settings, observers: Observers
    ) -> None:
        """Open bundles.

        Args:
            bundles: their folders; a model is named as its folder, without ``.bundle``.
            settings: the settings of the server.
            observers: the observers of their schedulers.

        Raises:
            ConfigError: two bundles have one name, or settings name an unknown model.
            TfexportError: a bundle cannot be used.
        """
        self._settings, self._observers = settings, observers
        names = [model_name(bundle) for bundle in bundles]
        _check_names(names, settings)
        self._paths = dict(zip(names, map(Path, bundles), strict=True))
        self._models = {name: self._open(name) for name in names}

    def __iter__(self) -> Iterator[ServerModel]:
        """The models as they are now."""
        return iter(list(self._models.values()))

    @property
    def names(self) -> list[str]:
        """The names of all models."""
        return list(self._models)

    def get(self, name: str) -> ServerModel:
        """The model of this name.

        Raises:
            RequestError: there is none.
        """
        found = self._models.get(name)
        if found is None:
            raise RequestError(404, f"no model {name[:60]!r}; served: {join_some(self.names)}")
        return found

    def taking(self, takes: str) -> list[ServerModel]:
        """The models that take such inputs."""
        return [model for model in self if model.takes == takes]

    def stats(self) -> dict[str, SchedulerStats]:
        """The statistics of all schedulers."""
        return {model.name: model.scheduler.stats() for model in self}

    async def reload(self, report: Callable[[str, str], object]) -> None:
        """Open bundles that were replaced, for new requests; running requests keep the old ones.

        Args:
            report: called with the name of every model and "unchanged", "opened" or "failed".
        """
        for name in self._paths:
            old = self._models[name]
            try:
                new = await asyncio.to_thread(self._reopen, name, old)
            except Exception as error:  # the old bundle stays in use
                request_log.write("reload", level="error", model=name, error=str(error))
                report(name, "failed")
                continue
            if new is None:
                report(name, "unchanged")
                continue
            self._models[name] = new
            old.retire()
            request_log.write("reload", model=name, version=new.version, before=old.version)
            report(name, "opened")

    def close(self) -> None:
        """Stop the threads of all models."""
        for model in self:
            model.close()

    def _reopen(self, name: str, old: ServerModel) -> ServerModel | None:
        return None if digest(self._paths[name]) == old.version else self._open(name)

    def _open(self, name: str) -> ServerModel:
        return ServerModel(name, self._paths[name], self._settings, self._observers(name))


def digest(bundle: Path) -> str:
    """A short digest of a bundle; empty if the folder is no bundle."""
    try:
        # The manifest holds the digests of all other files.
        return hashlib.sha256((bundle / MANIFEST).read_bytes()).hexdigest()[:12]
    except (OSError, ValueError):
        return ""


def model_name(bundle: str | os.PathLike[str]) -> str:
    """The name of a bundle's model: that of its folder, without ``.bundle``."""
    return Path(bundle).absolute().name.removesuffix(SUFFIX)


def _check_names(names: Sequence[str], settings: Settings) -> None:
    if not names:
        raise ConfigError("serve: no bundle is given")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(
            f"serve: two bundles make the model {twice[0]!r}; models are named as their folders, "
            f"without {SUFFIX}: rename one"
        )
    unknown = sorted(set(settings.models) - set(names))
    if unknown:
        raise ConfigError(
            f"serve: no model {join_some([repr(name) for name in unknown])}, of which there are "
            f"settings; there are {join_some(names)}"
        )


@dataclass(frozen=True)
class ModelChoice:
    """A model, and the languages between which it translates.

    Attributes:
        model: the model that serves the request.
        source: code of the texts' language; "und" if unknown.
        target: code of the translations' language; "und" if unknown.
        language_pair: the language tokens for the model.
    """

    model: ServerModel
    source: str
    target: str
    language_pair: LanguagePair


def choose_taking(models: ServerModels, name: str | None, takes: str) -> ServerModel | None:
    """Choose a model by its name and by what it takes; None if only languages can tell.

    Args:
        models: those of the server.
        name: in the request.
        takes: TEXT, AUDIO or IMAGE.

    Raises:
        RequestError: there is none.
    """
    able = models.taking(takes)
    if name is None:
        if not able:
            raise wrong(
                f"model: none here takes {_WORDS[takes]}; served: "
                + join_some([f"{model.name} (takes {_WORDS[model.takes]})" for model in models])
            )
        return able[0] if len(able) == 1 else None
    model = models.get(name)
    if model.takes != takes:
        others = [one.name for one in able]
        raise wrong(
            f"model: {model.name!r} takes {_WORDS[model.takes]}, not {_WORDS[takes]}"
            + _WAYS[model.takes]
            + (f"; those of {_WORDS[takes]}: {join_some(others)}" if others else "")
        )
    return model


def choose_named(
    models: ServerModels,
    name: str | None,
    source: str | None,
    target: str | None,
    takes: str = TEXT,
) -> ModelChoice:
    """Choose a model by its name, or by languages if several take such inputs.

    Args:
        models: those of the server.
        name: in the request.
        source: code of the texts' language.
        target: code of the translations' language.
        takes: TEXT or IMAGE.

    Raises:
        RequestError: there is none, or it does not know the languages.
    """
    model = choose_taking(models, name, takes)
    if model is None:
        if source is None and target is None:
            names = [one.name for one in models.taking(takes)]
            raise wrong(f"model: choose one of {join_some(names)}")
        return _matching(models, source, target, takes)[0]
    choice = _choice(model, source, target)
    if choice is None:
        raise _foreign(model, source, target)
    return choice


def choose_by_languages(models: ServerModels, source: str, target: str) -> ModelChoice:
    """Choose the first model that translates between languages.

    Raises:
        RequestError: there is none.
    """
    return _matching(models, source, target)[0]


def choose_only(models: ServerModels, target: str) -> ModelChoice | None:
    """The first model that writes a language, if all such models read the same language.

    None if they read several languages; then the language has to be detected.

    Raises:
        RequestError: no model writes it.
    """
    found = _matching(models, None, target)
    sources = {code for choice in found for code in choice.model.languages.sources}
    if len(sources) > 1:
        return None
    return _choice(found[0].model, next(iter(sources), None), target)


def sources_of(models: ServerModels, target: str) -> list[str]:
    """The languages from which there are translations into a language."""
    found = _matching(models, None, target)
    return list(dict.fromkeys(code for one in found for code in one.model.languages.sources))


def _matching(
    models: ServerModels, source: str | None, target: str | None, takes: str = TEXT
) -> list[ModelChoice]:
    """The models that take such inputs in these languages; unknown languages come last."""
    every = models.taking(takes)
    found = [choice for model in every if (choice := _choice(model, source, target)) is not None]
    if not found:
        pair = f"from {source or 'any language'} to {target or 'any language'}"
        known = _pairs(every) or f"none of {_WORDS[takes]}"
        raise wrong(f"no model translates {pair[:80]}; there are {known}")
    return sorted(found, key=lambda choice: choice.model.languages.unknown)


def _pairs(models: Sequence[ServerModel]) -> str:
    return join_some([
        f"{'/'.join(model.languages.sources[:5])}-{'/'.join(model.languages.targets[:5])}"
        for model in models
    ])  # fmt: skip


def _foreign(model: ServerModel, source: str | None, target: str | None) -> RequestError:
    """The failure of a request for languages that a model does not have."""
    problems = []
    for side, code in (("source", source), ("target", target)):
        known = getattr(model.languages, f"{side}s")
        if code is not None and getattr(model.languages, side)(code) is None:
            problems.append(
                f"{side}_language: {code[:40]!r} is not a language of the model {model.name!r}; "
                f"known: {join_some(sorted(known), 12)}"
            )
    return wrong(problems)


def _choice(model: ServerModel, source: str | None, target: str | None) -> ModelChoice | None:
    """The model with these languages in its own form; None if it does not have them."""
    languages = model.languages
    reads = None if source is None else languages.source(source)
    writes = None if target is None else languages.target(target)
    if (source is not None and reads is None) or (target is not None and writes is None):
        return None
    known = reads or languages.default_source
    written = writes or _only_target(model)
    return ModelChoice(
        model, known or UNKNOWN, written or UNKNOWN, languages.language_pair(reads, writes)
    )


def _only_target(model: ServerModel) -> str | None:
    known = model.engine.manifest.languages
    default = None if known is None else known.target
    targets = model.languages.targets
    return targets[0] if len(targets) == 1 else default
