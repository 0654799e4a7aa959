"""Files in requests, for models that take sound or pictures: each becomes a row."""

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfexport.errors import InputError
from tfexport.runtime.engine import acts_on_text, cut_ids
from tfexport.runtime.resolve import Prefix
from tfexport.runtime.scheduler import Submission
from tfexport.runtime.search import Request, ResolvedOptions
from tfexport.runtime.text.codec import LanguagePair
from tfexport.serve.call import Call
from tfexport.serve.failures import RequestError, spelled, wrong
from tfexport.serve.models import Model
from tfexport.serve.rows import Made, Translated
from tfexport.serve.settings import Settings
from tfexport.serve.texts import outcome

_DATA_URL = re.compile(r"data:[\w.+-]+/[\w.+-]+;base64,", re.ASCII)


@dataclass(frozen=True)
class AskedFiles:
    """The files of a request, and their options.

    Attributes:
        key: "image" or "audio".
        files: in base64, which may be data URLs, or bytes.
        options: the options of decoding, by name.
        prefixes: the start of each text; None for none.
        field: the field of a single file, for messages; None for that of a list.
    """

    key: str
    files: Sequence[str | bytes]
    options: Mapping[str, Any]
    prefixes: Sequence[Prefix] | None = None
    field: str | None = None

    def place(self, number: int) -> str:
        """Where a file is in the request, for messages."""
        return f"{self.key}s[{number}]" if self.field is None else self.field


async def read_files(
    settings: Settings, model: Model, asked: AskedFiles, call: Call
) -> list[Translated]:
    """The texts that a model makes of files.

    Raises:
        RequestError: it takes no such files, or one cannot be read; all are named.
        TfexportError: options are wrong, or too many requests wait.
    """
    call.texts = len(asked.files)
    if call.texts > settings.max_texts:
        text = f"{call.texts} files are more than the {settings.max_texts} of a request"
        raise RequestError(413, text)
    made = list[Submission]()

    def leave() -> None:
        call.ended = True
        for submission in made:
            submission.cancel()

    def work() -> ResolvedOptions:
        requests, options = _prepare(settings, model, asked, call)
        made.append(model.scheduler.submit(requests, options, deadline=call.deadline))
        if call.ended:
            made[0].cancel()
        return options

    call.exits.callback(leave)
    options = await call.aside(work)  # a short file may be a large picture
    found = await outcome(made[0], call)

    def assemble() -> list[Translated]:
        return [_translated(model, hypotheses, options) for hypotheses in found]

    texts = await call.in_thread(assemble)
    model.observer.cut(sum(not one.made[0].finished for one in texts))
    return texts


def _prepare(
    settings: Settings, model: Model, asked: AskedFiles, call: Call
) -> tuple[list[Request | None], ResolvedOptions]:
    engine, key = model.engine, asked.key
    takes = engine.manifest.media
    if takes != key:
        raise wrong(f"{key}s: the model {model.name!r} takes {takes or 'text'}, not {key}s")
    if not engine.gives_text:
        raise wrong(f"{key}s: the model {model.name!r} has no tokenizer, so it gives no text")
    extra = [*acts_on_text(asked.options, f"{key}s"), *cut_ids(asked.options)]
    given = asked.prefixes if asked.prefixes is not None else [None] * len(asked.files)
    options, prefixes = model.resolver.resolve(
        asked.options, given, extra, LanguagePair(as_ids=True)
    )
    options = model.within_limits(options, asked.options)
    files = _decoded(asked)
    size = sum(map(len, files))
    if size > settings.max_file_bytes:
        text = f"{size} bytes of files are more than the {settings.max_file_bytes} of a request"
        raise RequestError(413, text)
    requests, problems = list[Request | None](), []
    for number, (file, prefix) in enumerate(zip(files, prefixes, strict=True)):
        call.check()
        try:
            requests.append(engine.request_from({key: file}, number, prefix, options))
        except InputError as error:
            problems.append(f"{asked.place(number)}: {spelled(error)}")
    if problems:
        raise wrong(problems)
    return requests, options


def _decoded(asked: AskedFiles) -> list[bytes]:
    found, problems = [], []
    for number, file in enumerate(asked.files):
        if isinstance(file, bytes):
            found.append(file)
            continue
        start = _DATA_URL.match(file[:200])
        try:
            found.append(base64.b64decode(file[start.end() if start else 0 :], validate=True))
        except (binascii.Error, ValueError):
            problems.append(
                f"{asked.place(number)}: is not base64, nor a data URL of it; paths and other URLs "
                "are not read"
            )
    if problems:
        raise wrong(problems)
    return found


def _translated(model: Model, hypotheses: Any, options: ResolvedOptions) -> Translated:
    result = model.engine.result("", [], hypotheses, options)
    made = [
        Made(text, list(one.tokens), one.score, one.token_scores, one.finished)
        for text, one in zip(result.texts, result.hypotheses, strict=True)
    ]
    return Translated(made, [result])
