"""Lines that go in, and ids in them."""

import io

import pytest

from tfexport.errors import InputError
from tfexport.runtime.files.input_lines import is_number, open_lines, read_line, read_numbers

pytestmark = pytest.mark.no_model


def test_ids_stand_between_spaces() -> None:
    assert read_numbers(" 5  -1\t007 ") == [5, -1, 7]
    assert read_numbers("") == []


@pytest.mark.parametrize(
    "word", ["five", "1_0", "٣", "5.0", "-", "--5", "+5", "1e3", "9" * 19, "9" * 5000]
)
def test_words_that_are_no_ids_are_named(word: str) -> None:
    assert not is_number(word)
    with pytest.raises(InputError, match="is not an integer"):
        read_numbers(f"4 {word}")


def test_a_line_is_read_without_its_end_and_the_first_without_its_mark() -> None:
    assert read_line("\ufeffgrün\r\n".encode(), first=True) == "grün"
    assert read_line("\ufeffgrün\n".encode()) == "\ufeffgrün"
    with pytest.raises(InputError, match="not UTF-8: invalid start byte at byte 1"):
        read_line(b"a\xff\n")


def test_a_stream_is_counted_and_left_open() -> None:
    stream = io.BytesIO(b"a\nbc\n")
    with open_lines(stream) as lines:
        assert list(lines) == [b"a\n", b"bc\n"]
        assert (lines.count, lines.size, lines.name) == (2, 5, "-")
        assert lines.fingerprint() is None
    assert not stream.closed
