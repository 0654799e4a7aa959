"""Bodies of forms with files (multipart/form-data), which are in memory already."""

import python_multipart
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header

from tfexport.serve.failures import RequestError, wrong

MULTIPART = "multipart/form-data"
_MOST_PARTS = 64
_LONGEST_FIELD = 1 << 20  # bytes of a part that is no file


class _Form:
    """The parts of a form, as the parser calls out what it has found."""

    def __init__(self) -> None:
        self.found: dict[str, list[bytes]] = {}
        self.ended = False
        self._parts = 0
        self._header, self._value, self._disposition = b"", b"", b""
        self._name, self._content = "", list[bytes]()

    def on_part_begin(self) -> None:
        """Count the parts."""
        self._parts += 1
        if self._parts > _MOST_PARTS:
            raise RequestError(413, f"the form has more than {_MOST_PARTS} parts")
        self._header, self._value, self._disposition, self._content = b"", b"", b"", []

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        """Add to the name of a header."""
        self._header += data[start:end]

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        """Add to the value of a header."""
        self._value += data[start:end]

    def on_header_end(self) -> None:
        """Keep the header that names the field."""
        if self._header.lower() == b"content-disposition":
            self._disposition = self._value
        self._header, self._value = b"", b""

    def on_headers_finished(self) -> None:
        """Find the name of the field."""
        _, options = parse_options_header(self._disposition)
        self._name = options.get(b"name", b"").decode(errors="replace")
        if not self._name:
            raise wrong(f"part {self._parts} of the form has no name")

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        """Add to the content."""
        self._content.append(data[start:end])

    def on_part_end(self) -> None:
        """Add a field."""
        self.found.setdefault(self._name, []).append(b"".join(self._content))
        self._content = []

    def on_end(self) -> None:
        """Note that the form is complete."""
        self.ended = True


def read_multipart(content_type: bytes, body: bytes) -> dict[str, list[bytes]]:
    """The contents of all parts of a form, by the names of their fields.

    Raises:
        RequestError: it is not valid, or has too many parts.
    """
    _, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if not boundary:
        raise wrong(f"Content-Type: {MULTIPART} without a boundary")
    form = _Form()
    callbacks = {name: getattr(form, name) for name in vars(_Form) if name.startswith("on_")}
    try:
        parser = python_multipart.MultipartParser(boundary, callbacks)  # type: ignore[arg-type]
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise wrong(f"the form cannot be read: {str(error)[:200]}") from None
    if not form.ended:
        raise wrong("the form cannot be read: it ends before its last boundary")
    return form.found


def form_values(
    found: dict[str, list[bytes]], files: tuple[str, ...], lists: tuple[str, ...]
) -> dict[str, bytes | str | list[str]]:
    """The fields of a form as values: texts, but bytes of files.

    Args:
        found: see ``read_multipart``.
        files: fields that are files.
        lists: fields that may be given several times, also with ``[]`` behind their names.

    Raises:
        RequestError: naming the fields that are wrong.
    """
    values: dict[str, bytes | str | list[str]] = {}
    problems = []
    hint = f"; a file belongs in the field {' or '.join(files)}"
    for given, contents in found.items():
        name = given[:-2] if given.endswith("[]") and given[:-2] in lists else given
        if len(contents) > 1 and name not in lists:
            problems.append(f"{name[:60]}: occurs {len(contents)} times")
        elif name in files:
            values[name] = contents[0]
        elif any(len(content) > _LONGEST_FIELD for content in contents):
            problems.append(f"{name[:60]}: has more than {_LONGEST_FIELD} bytes{hint}")
        else:
            try:
                texts = [content.decode() for content in contents]
            except UnicodeDecodeError:
                problems.append(f"{name[:60]}: is not text in UTF-8{hint}")
                continue
            before = values.get(name, [])
            assert isinstance(before, list)
            values[name] = [*before, *texts] if name in lists else texts[0]
    if problems:
        raise wrong(problems)
    return values
