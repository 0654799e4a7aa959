"""The responses of all paths, for OpenAPI."""

from typing import Any, Literal

import pydantic


class Answer(pydantic.BaseModel):
    """Fields of a response, without others."""

    model_config = pydantic.ConfigDict(extra="forbid")


class _Hypothesis(Answer):
    text: str
    score: float | None = pydantic.Field(description="null without return_scores")
    tokens: list[int]
    finished: bool = pydantic.Field(description="false if it was cut at the longest length")
    token_scores: list[float] = []
    source_tokens: list[int] = []
    attention: list[list[float]] = []
    alignment: str = ""


class _Term(Answer):
    source: str
    targets: list[str]


class _Translation(_Hypothesis):
    unknown_tokens: int = pydantic.Field(description="of the text, which the model does not know")
    unmet_terms: list[_Term] = pydantic.Field([], description="of the text, if there are any")
    hypotheses: list[_Hypothesis] = pydantic.Field([], description="if there are several")
    sentences: list[_Hypothesis] = pydantic.Field([], description="of a text, if they attend")


class Translations(Answer):
    """The response of ``POST /v1/translate``."""

    model: str
    translations: list[_Translation]


class _Score(Answer):
    score: float
    tokens: list[int]
    token_scores: list[float] = []


class Scores(Answer):
    """The response of ``POST /v1/score``."""

    model: str
    scores: list[_Score]


class _SentencePieces(Answer):
    source: str
    source_pieces: list[str]
    pieces: list[str]


class Pieces(Answer):
    """The response of ``POST /v1/pieces``."""

    model: str
    sentences: list[_SentencePieces]


class _Sides(Answer):
    source: list[str]
    target: list[str]


class _Speech(Answer):
    languages: list[str]
    tasks: list[str]
    detects: bool = pydantic.Field(description="whether it finds the language of a sound")


class _Model(Answer):
    name: str
    version: str
    languages: _Sides
    split_sentences: str
    input: str
    engine: str
    batching: str
    reason: str = ""
    speech: _Speech | None = pydantic.Field(None, description="of models that transcribe")


class OpenAIModel(Answer):
    """The response of ``GET /v1/models/{name}``."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class Models(Answer):
    """The response of ``GET /v1/models``: as OpenAI's clients read it, and in full."""

    object: Literal["list"]
    data: list[OpenAIModel]
    models: list[_Model]


class _Detected(Answer):
    confidence: float
    language: str


class LibreTranslation(Answer):
    """The response of ``POST /translate``: lists, if the request has a list of texts."""

    text: str | list[str] = pydantic.Field(alias="translatedText")
    detected: _Detected | list[_Detected] | None = pydantic.Field(None, alias="detectedLanguage")
    alternatives: list[str] | list[list[str]] = []
    unmet: list[_Term] | list[list[_Term]] = pydantic.Field([], alias="unmetTerms")


class Detection(pydantic.RootModel[list[_Detected]]):
    """The response of ``POST /detect``."""


class _LibreLanguage(Answer):
    code: str
    name: str
    targets: list[str]


class LibreLanguages(pydantic.RootModel[list[_LibreLanguage]]):
    """The response of ``GET /languages``."""


class _DeepLTranslation(Answer):
    detected_source_language: str
    text: str
    billed_characters: int
    unmet_terms: list[_Term] = []


class DeepLTranslations(Answer):
    """The response of ``POST /v2/translate``."""

    translations: list[_DeepLTranslation]


class _DeepLLanguage(Answer):
    language: str
    name: str
    supports_formality: bool = False


class DeepLLanguages(pydantic.RootModel[list[_DeepLLanguage]]):
    """The response of ``GET /v2/languages``."""


class Usage(Answer):
    """The response of ``GET /v2/usage``."""

    character_count: int
    character_limit: int


class _GlossaryPair(Answer):
    source_lang: str
    target_lang: str


class GlossaryPairs(Answer):
    """The response of ``GET /v2/glossary-language-pairs``."""

    supported_languages: list[_GlossaryPair]


class SingleGlossary(_GlossaryPair):
    """The response of ``POST /v2/glossaries``: a glossary of one pair of languages."""

    glossary_id: str
    name: str
    ready: bool
    creation_time: str
    entry_count: int


class SingleGlossaries(Answer):
    """The response of ``GET /v2/glossaries``."""

    glossaries: list[SingleGlossary]


class GlossaryDictionary(_GlossaryPair):
    """The response of ``PUT /v3/glossaries/{glossary}/dictionaries``."""

    entry_count: int


class Glossary(Answer):
    """The response of ``POST /v3/glossaries``: a glossary of several pairs of languages."""

    glossary_id: str
    name: str
    dictionaries: list[GlossaryDictionary]
    creation_time: str


class Glossaries(Answer):
    """The response of ``GET /v3/glossaries``."""

    glossaries: list[Glossary]


class _EntriesOfPair(_GlossaryPair):
    entries: str
    entries_format: str


class GlossaryEntries(Answer):
    """The response of ``GET /v3/glossaries/{glossary}/entries``."""

    dictionaries: list[_EntriesOfPair]


class _Output(Answer):
    name: str
    shape: list[int]
    datatype: str
    data: list[Any] = []
    parameters: dict[str, Any] = {}


class Inference(Answer):
    """The response of ``POST /v2/models/{name}/infer``."""

    model_name: str
    model_version: str
    id: str = ""
    outputs: list[_Output]


class _Seconds(Answer):
    type: Literal["duration"]
    seconds: int


class _Segment(Answer):
    id: int
    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float | None
    compression_ratio: float
    no_speech_prob: float
    seek: int


class _Word(Answer):
    word: str
    start: float
    end: float


class Transcribed(Answer):
    """The response of ``POST /v1/audio/…``: ``text``, and with ``verbose_json`` the rest."""

    text: str
    usage: _Seconds | None = None
    task: str | None = None
    language: str | None = None
    duration: float | None = None
    segments: list[_Segment] | None = None
    words: list[_Word] | None = None


ANSWERS: dict[tuple[str, str], type[pydantic.BaseModel]] = {
    ("post", "/v1/translate"): Translations,
    ("post", "/v1/score"): Scores,
    ("post", "/v1/pieces"): Pieces,
    ("get", "/v1/models"): Models,
    ("get", "/v1/models/{name}"): OpenAIModel,
    ("post", "/v1/audio/transcriptions"): Transcribed,
    ("post", "/v1/audio/translations"): Transcribed,
    ("post", "/translate"): LibreTranslation,
    ("post", "/detect"): Detection,
    ("get", "/languages"): LibreLanguages,
    ("post", "/v2/translate"): DeepLTranslations,
    ("get", "/v2/languages"): DeepLLanguages,
    ("get", "/v2/usage"): Usage,
    ("get", "/v2/glossary-language-pairs"): GlossaryPairs,
    ("post", "/v2/glossaries"): SingleGlossary,
    ("get", "/v2/glossaries"): SingleGlossaries,
    ("get", "/v2/glossaries/{glossary}"): SingleGlossary,
    ("post", "/v3/glossaries"): Glossary,
    ("get", "/v3/glossaries"): Glossaries,
    ("get", "/v3/glossaries/{glossary}"): Glossary,
    ("patch", "/v3/glossaries/{glossary}"): Glossary,
    ("get", "/v3/glossaries/{glossary}/entries"): GlossaryEntries,
    ("put", "/v3/glossaries/{glossary}/dictionaries"): GlossaryDictionary,
    ("post", "/v2/models/{name}/infer"): Inference,
}
