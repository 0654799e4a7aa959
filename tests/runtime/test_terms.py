"""Terms: their matching in source texts, and translations that meet them."""

import random
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tfexport.runtime.terms as matching
from tfexport.errors import ConfigError, InputError
from tfexport.runtime import Translator
from tfexport.runtime.model.engine_name import EngineName
from tfexport.runtime.scheduler import Scheduler
from tfexport.runtime.term_tokens import WordBoundaries
from tfexport.runtime.terms import (
    Phrases,
    Terms,
    split_words,
    words_of_pieces,
    words_of_tokens,
    written_words,
)

DEMO = Path("examples/de-en.bundle")
ROWS = [
    "Mein Hund ist nicht so groß.",
    "Wir sind auf Sie angewiesen.",
    "Das Wetter ist schlecht.",
    "Die Katze und die Katze schlafen.",
]
TERMS = [("Hund", "hound"), ("angewiesen", ("depend", "depends")), ("Katze", "tomcat")]


@pytest.fixture(scope="module", params=["onnxruntime", "native"])
def translator(request: pytest.FixtureRequest) -> Iterator[Translator]:
    if request.param == "native":
        pytest.importorskip("tfexport_native")
    with Translator(DEMO, threads=1, engine=request.param) as opened:
        yield opened


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("concat cat catalogue cat's (cat) cat-like", 4),
        ("Cat. Cat, Cat CAT", 2),
        ("A cat! “Cat”\nCat", 3),
        ("New York, Old York", 2),
        ("New\u00a0 York's", 1),
        ("C ++, C++ and C+", 1),
        ("私は東京が好き", 1),
        ("cafe\u0301, café", 2),
        ("hi\u0308", 0),
    ],
)
def test_phrases_are_found_as_whole_words(text: str, found: int) -> None:
    phrases = ["cat", "New York", "York", "C++", "東京", "café", "hi"]
    terms = Terms.of([(phrase, f"<{phrase}>") for phrase in phrases])
    assert len(terms.find(text)) == found


def test_the_longest_phrase_is_found_first_and_none_overlap() -> None:
    terms = Terms.of([("a b", "1"), ("a b c", "2"), ("c d", "3"), ("a", "4"), ("A", "5")])
    assert [term.targets[0] for term in terms.find("a b c d, a b d. a A")] == ["2", "1", "4", "5"]


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ("Hund", "expected a list of pairs"),
        ([("Hund",)], "not a pair"),
        ([("Hund", "")], "empty phrase"),
        ([("Hund", [])], "neither a target phrase nor"),
        ([("Hund", "dog"), ("Hund", "hound")], "'Hund' is translated as 'dog', and as 'hound'"),
        ([("x" * 1001, "dog")], "1001 characters"),
        ([("Hund", ["dog"] * 2 + [str(i) for i in range(32)])], "33 target phrases"),
    ],
)
def test_wrong_terms_are_refused(pairs: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Terms.of(pairs)  # type: ignore[arg-type]


@pytest.mark.parametrize("beam", [1, 4])
def test_translations_have_the_terms_and_other_rows_stay(translator: Translator, beam: int) -> None:
    plain = translator.translate(ROWS, beam_size=beam)
    made = translator.translate(ROWS, beam_size=beam, terms=TERMS)
    assert not any(result.unmet_terms for result in made)
    texts = [result.text or "" for result in made]
    assert "hound" in texts[0]
    assert "depend" in texts[1]
    assert made[2] == plain[2]
    assert texts[3].lower().count("tomcat") >= 2
    alone = [
        translator.translate([row], beam_size=beam, terms=TERMS)[0].hypotheses[0].tokens
        for row in ROWS
    ]
    assert [result.hypotheses[0].tokens for result in made] == alone


@pytest.mark.parametrize("beam", [1, 4])
def test_a_phrase_replaces_the_word_that_the_model_would_choose(
    translator: Translator, beam: int
) -> None:
    terms = [("Auto", "vehicle"), ("Haus", "home"), ("Tee", "herbal tea"),
             ("Katze", "Feline"), ("Hund", ["puppies", "puppy"])]  # fmt: skip
    expected = {
        "Mein Auto ist sehr alt.": "My vehicle is very old.",
        "Das Haus ist schön.": "The home is pretty.",
        "Ich hätte gerne eine Tasse Tee.": "I'd like a cup of herbal tea.",
        "Meine Katze mag meinen Hund.": "My Feline likes my puppy.",
    }
    made = translator.translate([*expected], beam_size=beam, terms=terms)
    assert [result.text for result in made] == [*expected.values()]
    known = translator.score([*expected], [result.hypotheses[0].tokens for result in made])
    scores = [each.score for each in known]
    # The bundle is quantised: in onnxruntime scores depend a little on the batch.
    most = 1e-5 if translator.engine.model.engine.startswith("native") else 0.05
    assert [result.hypotheses[0].score for result in made] == pytest.approx(scores, abs=most)


@pytest.mark.parametrize(
    ("text", "surfaces", "words"),
    [
        ("Der Hund, der (bellt)", ["Der", "Hund", ",", "der", "(bel", "lt)"], [0, 1, 2, 3, 5, 5]),
        ("cafe\u0301 – ja", ["caf", "é", "é", "", "–", "ja"], [0, 0, 0, 1, 1, 2]),
        ("東京都", ["東京", "都"], [0, 2]),
        ("ﬁne day", ["fi", "ne", "day"], [0, 0, 1]),
    ],
)
def test_tokens_belong_to_words(text: str, surfaces: list[str], words: list[int]) -> None:
    assert words_of_tokens(written_words(text), surfaces) == words


def test_tokens_that_are_exactly_the_text_belong_to_the_same_words() -> None:
    draw = random.Random(5)
    several = 0
    for _ in range(500):
        text = "".join(draw.choices("abé(. ", k=draw.randint(1, 12)))
        written, pieces = text.replace(" ", ""), list[str]()
        while written or draw.random() < 0.2:
            size = draw.randint(0, 3)
            pieces, written = [*pieces, written[:size]], written[size:]
        found = words_of_pieces(written_words(text), pieces)
        if pieces and found is not None:
            assert found == words_of_tokens(written_words(text), pieces), (text, pieces)
            several += 1
        assert words_of_pieces(written_words(text), [*pieces, "b"]) is None
    assert several > 400


def test_texts_of_plain_characters_are_split_as_any_other() -> None:
    draw = random.Random(3)
    plain = [chr(code) for code in range(0x3000) if matching._PLAIN.fullmatch(chr(code))]
    alphabet = [*plain, *'ab1_ .!?\u2019"(' * 40]
    for text in [*plain, *("".join(draw.choices(alphabet, k=9)) for _ in range(2000))]:
        assert split_words(text) == matching._split(unicodedata.normalize("NFC", text)), text


def test_phrases_are_found_without_splitting_where_words_have_them() -> None:
    draw = random.Random(4)
    known = set[bool]()
    for _ in range(3000):
        phrases = ["".join(draw.choices("aAb. _", k=draw.randint(1, 3))).strip() for _ in range(2)]
        text = "".join(draw.choices("aAbB.  _é", [4, 2, 3, 1, 2, 3, 1, 1, 0.2], k=7))
        found = Phrases.of((each, 0) for each in phrases if each)
        if (has := found.is_in(text)) is not None:
            known.add(has)
            assert has == (found.count(split_words(text)) > 0), (phrases, text)
    assert known == {True, False}


def test_terms_that_a_translation_has_anyway_change_nothing(translator: Translator) -> None:
    (plain,) = translator.translate(ROWS[2:3], beam_size=4)
    (made,) = translator.translate(ROWS[2:3], beam_size=4, terms=[("ist", "is")])
    assert " is " in (plain.text or "")
    assert made == plain


def test_each_row_has_its_own_terms(translator: Translator) -> None:
    given = [Terms.of([("Hund", "hound")]), None]
    made = translator.translate([ROWS[0]] * 2, terms=given)
    assert ["hound" in (result.text or "") for result in made] == [True, False]


def test_terms_without_room_are_reported(translator: Translator) -> None:
    terms = [("Hund", "the big hound of the north")]
    (made,) = translator.translate(ROWS[:1], terms=terms, max_length=3)
    assert made.unmet_terms == Terms.of(terms).terms
    assert made.to_dict()["unmet_terms"] == [{"source": "Hund", "targets": [terms[0][1]]}]


def test_a_term_is_a_whole_word_of_the_translation(translator: Translator) -> None:
    for word in ("car", "wolf"):
        (made,) = translator.translate(ROWS[:1], terms=[("Hund", word)], beam_size=4)
        assert word in (made.text or "").replace(".", " ").replace("?", " ").split()


def test_required_ids_are_in_the_target(translator: Translator) -> None:
    source = translator.encode(ROWS[0])
    required = [[[7, 9]], [[11], [12, 13]], [[7, 9]]]
    (made,) = translator.generate([source], required=[required], beam_size=2)
    ids = made.hypotheses[0].tokens
    assert sum(ids[i : i + 2] == [7, 9] for i in range(len(ids))) >= 2
    assert 11 in ids or any(ids[i : i + 2] == [12, 13] for i in range(len(ids)))
    (short,) = translator.generate([source], required=[required], max_length=4)
    assert short.hypotheses[0].unmet == (1,)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampling": True}, "sampling excludes"),
        ({"return_alternatives": True}, "return_alternatives excludes"),
        ({"beam_size": 4, "beam_groups": 2}, "beam_groups excludes"),
        ({"callback": print}, "callback excludes"),
    ],
)
def test_options_without_a_meaning_for_terms_are_refused(
    translator: Translator, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        translator.translate(ROWS[:1], terms=TERMS, **options)


def test_phrases_that_no_target_contains_are_refused(translator: Translator) -> None:
    banned = translator.texts.encode_target("hound")
    with pytest.raises(InputError, match=r"'hound' holds the token .* suppress_tokens"):
        translator.translate(ROWS[:1], terms=TERMS, suppress_tokens=banned[:1])
    with pytest.raises(InputError, match=r"'hound' holds the tokens .* suppress_sequences"):
        translator.translate(ROWS[:1], terms=TERMS, suppress_sequences=["a hound", "hound"])
    with pytest.raises(InputError, match="terms need the whole text"):
        translator.translate(ROWS[:1], terms=TERMS, truncate=True, max_input_length=3)
    with pytest.raises(InputError, match="end token"):
        translator.generate([[3, 4]], required=[[[[translator.manifest.special_ids.eos]]]])


def test_phrases_that_the_vocabulary_cannot_write_are_unmet(translator: Translator) -> None:
    """One such term of a glossary failed all texts of a request."""
    (text,) = ROWS[:1]
    (plain,) = translator.translate([text], terms=TERMS)
    lacking = [(source, "\N{CJK UNIFIED IDEOGRAPH-6771}") for source in text.split()[:1]]
    (found,) = translator.translate([text], terms=[*TERMS, *lacking])
    assert found.text == plain.text
    assert [term.source for term in found.unmet_terms] == [source for source, _ in lacking]
    (source, targets), *_ = [(term.source, term.targets) for term in Terms.of(TERMS).find(text)]
    pair = (source, [lacking[0][1], *targets])  # of several phrases the others count
    (found,) = translator.translate([text], terms=[pair])
    assert not found.unmet_terms


def test_all_terms_with_one_target_are_unmet(translator: Translator) -> None:
    terms = [("liebe", "cat"), ("Tochter", "cat"), ("Ihre", "your")]
    (found,) = translator.translate(["Ich liebe Ihre Tochter."], terms=terms, max_length=1)
    assert [term.source for term in found.unmet_terms] == ["liebe", "Ihre", "Tochter"]


@pytest.mark.parametrize("rules", ["tfexport", "transformers"])
@pytest.mark.parametrize("engine", ["onnxruntime", "native"])
def test_a_drawn_model_gives_the_best_of_all_sequences(
    tiny_bundle: Path, engine: EngineName, rules: str
) -> None:
    if engine == "native":
        pytest.importorskip("tfexport_native")
    source, required = [5, 9, 7], [[[8], [6, 10]]]
    with Translator(tiny_bundle, threads=1, engine=engine) as opened:
        end, size = opened.manifest.special_ids.eos, opened.manifest.limits.target_vocab_size
        others = [token for token in range(size) if token != end]
        targets = [[8], *([a, b] for a in others for b in others if 8 in (a, b)), [6, 10]]
        known = opened.score([source] * len(targets), targets, return_token_scores=True)
        # A hypothesis of two tokens is cut there, without an end token.
        means = [sum(made.token_scores[:2]) / 2 for made in known if made.token_scores is not None]
        best = sorted(zip(means, targets, strict=True), key=lambda pair: -pair[0])[:3]
        (made,) = opened.generate(
            [source], required=[required], beam_size=400, num_hypotheses=3, max_length=2,
            search_rules=rules,
        )  # fmt: skip
    assert [each.tokens for each in made.hypotheses] == [tokens for _, tokens in best]
    scores = [each.score for each in made.hypotheses]
    assert scores == pytest.approx([score for score, _ in best], abs=1e-5)


@pytest.mark.parametrize(
    "pieces",
    [
        ("▁dog", "s", "▁cat", "."),
        ("dog", "##s", "cat", "."),
        ("dog", "@@s", "cat", "."),
    ],
    ids=["marked words", "marked parts", "unlike both"],
)
def test_boundaries_are_seen_in_text(pieces: tuple[str, ...]) -> None:
    tokenizer = _Pieces(pieces)
    bounds = WordBoundaries(tokenizer, "cat", [2], 2)  # type: ignore[arg-type]
    text = tokenizer.decode([2, 1])
    assert bounds.continues(1) == (text == "cats")
    assert not bounds.continues(0)
    assert not bounds.continues(3)
    assert not bounds.opens(0)


class _Pieces:
    """Pieces that are joined by the marks of SentencePiece or of WordPiece."""

    def __init__(self, pieces: tuple[str, ...]) -> None:
        self._pieces = pieces

    def decode(self, ids: list[int]) -> str:
        text = "".join(
            self._pieces[i] if self._pieces[0][0] == "▁" else " " + self._pieces[i] for i in ids
        )
        return text.replace("▁", " ").replace(" ##", "").replace(" .", ".").strip()


def test_a_prefix_counts(translator: Translator) -> None:
    (made,) = translator.translate(ROWS[:1], terms=TERMS[:1], target_prefix=["My hound"])
    (plain,) = translator.translate(ROWS[:1], target_prefix=["My hound"])
    assert made == plain


def test_the_scheduler_decodes_rows_with_terms_beside_others(translator: Translator) -> None:
    engine = translator.engine
    options, _ = engine.resolver.resolve({"beam_size": 2})
    terms = Terms.of(TERMS)
    requests = [
        engine.request(
            row, i, (), options, as_ids=False, required=engine.required(row, terms, options)
        )
        for i, row in enumerate(ROWS)
    ]
    expected = [made.hypotheses for made in translator.translate(ROWS, beam_size=2, terms=terms)]
    scheduler = Scheduler(engine)
    try:
        submissions = [scheduler.submit([request], options) for request in requests]
        found = [submission.future.result(60)[0] for submission in submissions]
    finally:
        scheduler.close()
    assert [[made.tokens for made in row] for row in found] == [
        [made.tokens for made in row] for row in expected
    ]
