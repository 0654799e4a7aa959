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
from tfexport.serve.models import ServerModel
from tfexport.serve.rows import TextTranslation
from tfexport.serve.settings import Settings
from tfexport.serve.texts import outcome

_DATA_URL = re.compile(r"data:[\w.+-]+/[\w.+-]+;base64,", re.ASCII)


@dataclass(frozen=True)
class FileRequest:
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
    settings: Settings, model: ServerModel, request: FileRequest, call: Call
) -> list[TextTranslation]:
    """The texts that a model makes of files.

    Raises:
        RequestError: it takes no such files, or one cannot be read; all are named.
        TfexportError: options are wrong, or too many requests wait.
    """
    call.texts = len(request.files)
    if call.texts > settings.max_texts:
        text = f"{call.texts} files are more than the {settings.max_texts} of a request"
        raise RequestError(413, text)
    made = list[Submission]()

    def leave() -> None:
        call.ended = True
        for submission in made:
            submission.cancel()

    def work() -> ResolvedOptions:
        requests, options = _prepare(settings, model, request, call)
        made.append(model.scheduler.submit(requests, options, deadline=call.deadline))
        if call.ended:
            made[0].cancel()
        return options

    call.exits.callback(leave)
    options = await call.aside(work)  # a short file may be a large picture
    found = await outcome(made[0], call)

    def assemble() -> list[TextTranslation]:
        return [_translation(model, hypotheses, options) for hypotheses in found]

    translations = await call.in_thread(assemble)
    model.observer.cut(sum(not one.hypotheses[0].finished for one in translations))
    return translations


def _prepare(
    settings: Settings, model: ServerModel, request: FileRequest, call: Call
) -> tuple[list[Request | None], ResolvedOptions]:
    engine, key = model.engine, request.key
    takes = engine.manifest.media
    if takes != key:
        raise wrong(f"{key}s: the model {model.name!r} takes {takes or 'text'}, not {key}s")
    if not engine.gives_text:
        raise wrong(f"{key}s: the model {model.name!r} has no tokenizer, so it gives no text")
    extra = [*acts_on_text(request.options, f"{key}s"), *cut_ids(request.options)]
    given = request.prefixes if request.prefixes is not None else [None] * len(request.files)
    options, prefixes = model.resolver.resolve(
        request.options, given, extra, LanguagePair(as_ids=True)
    )
    options = model.within_limits(options, request.options)
    files = _decoded(request)
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
            problems.append(f"{request.place(number)}: {spelled(error)}")
    if problems:
        raise wrong(problems)
    return requests, options


def _decoded(request: FileRequest) -> list[bytes]:
    found, problems = [], []
    for number, file in enumerate(request.files):
        if isinstance(file, bytes):
            found.append(file)
            continue
        start = _DATA_URL.match(file[:200])
        try:
            found.append(base64.b64decode(file[start.end() if start else 0 :], validate=True))
        except (binascii.Error, ValueError):
            problems.append(
                f"{request.place(number)}: is not base64, nor a data URL of it; paths and other "
                "URLs are not read"
            )
    if problems:
        raise wrong(problems)
    return found


def _translation(model: ServerModel, hypotheses: Any, options: ResolvedOptions) -> TextTranslation:
    result = model.engine.result("", [], hypotheses, options)
    return TextTranslation(result.texts, result.hypotheses, [result])
