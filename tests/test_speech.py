"""Names of languages that callers give for sounds."""

import pytest

from tfexport.errors import ConfigError
from tfexport.runtime.speech.transcription import TranscriptionOptions
from tfexport.speech import Speech, language_code

pytestmark = pytest.mark.no_model


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ("en-US", "en"), ("pt_BR", "pt"), ("zh-Hant-TW", "zh"), ("yue-HK", "yue"),
        ("<|de|>", "de"), ("Haitian Creole", "ht"), ("haw", "haw"),
        # What is no language with a region stays as it was given.
        ("xx-US", "xx-us"), ("en-", "en-"), ("en us", "en us"), ("english-us", "english-us"),
    ],
)  # fmt: skip
def test_of_a_tag_with_a_region_the_language_counts(given: str, code: str) -> None:
    assert language_code(given) == code


def test_a_model_of_english_alone_takes_english_of_any_region() -> None:
    english = Speech(no_timestamps=8, positions=30)
    for language in ("en", "en-US", "english", "en_GB"):
        assert TranscriptionOptions(language=language).resolved(english, 1).language is None
    with pytest.raises(ConfigError, match="'de-DE': the model knows English alone"):
        TranscriptionOptions(language="de-DE").resolved(english, 1)
