"""Old names of keywords, for one release."""

import pytest

from tfexport.deprecation import renamed_keywords


@renamed_keywords(source="checkpoint")
def read(checkpoint: str, suffix: str = "") -> str:
    """The function whose keyword was renamed."""
    return checkpoint + suffix


def test_new_names_and_positions_work_without_a_warning() -> None:
    assert read("a") == read(checkpoint="a") == "a"
    assert read.__name__ == "read"
    assert read.__doc__ == "The function whose keyword was renamed."


def test_old_name_works_and_warns_where_it_was_used() -> None:
    with pytest.warns(
        DeprecationWarning, match=r"'source' of read\(\) is now called 'chec"
    ) as seen:
        assert read(source="a", suffix="b") == "ab"  # type: ignore[call-arg]
    assert seen[0].filename == __file__


def test_both_names_at_once_are_refused() -> None:
    with pytest.raises(TypeError, match="got both 'checkpoint' and 'source'"):
        read(checkpoint="a", source="b")  # type: ignore[call-arg]
    warned = pytest.warns(DeprecationWarning, match="is now called")
    with pytest.raises(TypeError, match="multiple values"), warned:
        read("a", source="b")  # type: ignore[call-arg]
