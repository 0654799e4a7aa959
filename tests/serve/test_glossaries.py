"""Terms in the protocols, and the glossaries of DeepL's, by DeepL's own client too."""

import contextlib
import errno
import json
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.serve.servers import FORM, Server, serving
from tfexport.errors import ConfigError
from tfexport.serve import glossaries as module
from tfexport.serve.failures import RequestError
from tfexport.serve.glossaries import GlossaryFolder, merged

KEY = "secret-key"
BODY = {"name": "n", "source_lang": "de", "target_lang": "en", "entries": "w4\tw9"}
BOTH = ("de", "en")


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stored")


@pytest.fixture(scope="module", name="keeping")
def _keeping(
    tiny_bundle: Path, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    work = tmp_path_factory.mktemp("keeping")
    keys = work / "keys.txt"
    keys.write_text(f"{KEY}\n")
    options = ("--languages", "tiny=de-en", "--api-key-file", keys, "--glossaries", folder)
    with serving(work, tiny_bundle, *options) as found:
        yield found


def ask(server: Server, method: str, path: str, body: Any = None, **headers: str) -> Any:
    return server.ask(method, path, body, {"Authorization": f"DeepL-Auth-Key {KEY}", **headers})


@pytest.mark.peers
def test_deepls_client_keeps_glossaries_of_version_2(keeping: Server) -> None:
    deepl = pytest.importorskip("deepl", reason="deepl is not installed; see `make optional`")
    with contextlib.closing(deepl.DeepLClient(KEY, server_url=keeping.url)) as api:
        assert [(one.source_lang, one.target_lang) for one in api.get_glossary_languages()] == [
            BOTH
        ]
        made = api.create_glossary("Bäume", "DE", "EN-US", {"w4 ": "w9", "w5 w6": "ö, 'x'"})
        assert (made.name, made.ready, made.entry_count) == ("Bäume", True, 2)
        assert (made.source_lang, made.target_lang) == ("DE", "EN")
        csv = api.create_glossary_from_csv("c", "DE", "EN", 'w4,"a ""b"", c",de,en\nw5,d,de,en\n')
        assert api.get_glossary_entries(csv) == {"w4": 'a "b", c', "w5": "d"}
        assert api.get_glossary_entries(made) == {"w4": "w9", "w5 w6": "ö, 'x'"}
        assert api.get_glossary(made.glossary_id).creation_time == made.creation_time
        assert [one.name for one in api.list_glossaries()] == ["Bäume", "c"]
        for one in (made, csv):
            api.delete_glossary(one)
        with pytest.raises(deepl.GlossaryNotFoundException, match="no glossary"):
            api.get_glossary(made.glossary_id)
        assert api.list_glossaries() == []
        with pytest.raises(deepl.DeepLException, match="no model translates from fr to en"):
            api.create_glossary("f", "FR", "EN", {"a": "b"})
    with (
        contextlib.closing(deepl.DeepLClient("wrong", server_url=keeping.url)) as api,
        pytest.raises(deepl.AuthorizationException),
    ):
        api.list_multilingual_glossaries()


@pytest.mark.peers
def test_deepls_client_keeps_glossaries_of_version_3(keeping: Server) -> None:
    deepl = pytest.importorskip("deepl", reason="deepl is not installed; see `make optional`")
    entries = deepl.api_data.MultilingualGlossaryDictionaryEntries
    with contextlib.closing(deepl.DeepLClient(KEY, server_url=keeping.url)) as api:
        made = api.create_multilingual_glossary("m", [entries("DE", "EN-GB", {"w4": "w9"})])
        one = api.update_multilingual_glossary_dictionary(
            made, entries("DE", "EN", {"w4": "w8", "w5": "w7"})
        )
        assert [(d.source_lang, d.target_lang, d.entry_count) for d in one.dictionaries] == [
            ("DE", "EN", 2)
        ]
        assert api.update_multilingual_glossary_name(made, "other").name == "other"
        (read,) = api.get_multilingual_glossary_entries(made, "DE", "EN-US").dictionaries
        assert read.entries == "w4\tw8\nw5\tw7"
        replaced = api.replace_multilingual_glossary_dictionary(
            made, entries("DE", "EN", {"a": "b"})
        )
        assert replaced.entry_count == 1
        assert [one.name for one in api.list_multilingual_glossaries()] == ["other"]
        assert [one.name for one in api.list_glossaries()] == ["other"]  # it has one pair
        api.delete_multilingual_glossary_dictionary(made, source_lang="DE", target_lang="EN")
        assert api.get_multilingual_glossary(made.glossary_id).dictionaries == []
        with pytest.raises(deepl.GlossaryNotFoundException, match="no dictionary de-en"):
            api.get_multilingual_glossary_entries(made, "DE", "EN")
        api.delete_multilingual_glossary(made)
        with pytest.raises(deepl.GlossaryNotFoundException, match="no glossary"):
            api.delete_multilingual_glossary(made)


@pytest.mark.peers
def test_deepls_client_translates_with_glossaries(keeping: Server) -> None:
    deepl = pytest.importorskip("deepl", reason="deepl is not installed; see `make optional`")
    entries = deepl.api_data.MultilingualGlossaryDictionaryEntries
    with contextlib.closing(deepl.DeepLClient(KEY, server_url=keeping.url)) as api:
        one = api.create_glossary("one", "DE", "EN", {"w4 w5": "w9 w10"})
        two = api.create_multilingual_glossary("two", [entries("DE", "EN", {"w6": "w11 w12"})])
        text = "w7 w4 w5 w6"
        for glossary in (one, one.glossary_id):
            found = api.translate_text(
                text, source_lang="DE", target_lang="EN-US", glossary=glossary
            )
            assert "w9 w10" in found.text
        assert "w9 w10" in api.translate_text_with_glossary(text, one, target_lang="EN-GB").text
        found = api.translate_text(
            [text, "w4"], source_lang="DE", target_lang="EN-GB", glossary=two
        )
        assert "w11 w12" in found[0].text
        both = api.translate_text(
            text, source_lang="DE", target_lang="EN-US", glossary_ids=[one, two.glossary_id]
        )
        assert "w9 w10" in both.text
        assert "w11 w12" in both.text
        page = api.translate_text(
            "<p>w7 w4 <b>w5</b></p>", source_lang="DE", target_lang="EN-US", glossary=one,
            tag_handling="html",
        )  # fmt: skip
        assert page.text.count("<b>") == 1
        assert "w9" in page.text
        api.delete_glossary(one)
        with pytest.raises(deepl.DeepLException, match="no glossary"):
            api.translate_text(text, source_lang="DE", target_lang="EN-US", glossary=one)
        api.delete_multilingual_glossary(two)


def test_terms_of_a_request_are_met_or_reported(keeping: Server) -> None:
    bearer = {"Authorization": f"Bearer {KEY}"}
    own = {"texts": ["w7 w4", "w5", "w4\nw6"], "terms": [["w4", ["w9 w10", "w11 w12"]]]}
    found = keeping.ask("POST", "/v1/translate", own, bearer).json["translations"]
    assert all("w9 w10" in found[i]["text"] or "w11 w12" in found[i]["text"] for i in (0, 2))
    assert not any("unmet_terms" in one for one in found)
    plain = keeping.ask("POST", "/v1/translate", {"texts": ["w5"]}, bearer).json["translations"]
    # Its row shares a batch with the others.
    assert (found[1]["text"], found[1]["tokens"]) == (plain[0]["text"], plain[0]["tokens"])
    unmet = {"source": "w4", "targets": ["w9 w10", "w11 w12"]}
    short = {**own, "options": {"max_length": 1}}
    found = keeping.ask("POST", "/v1/translate", short, bearer).json["translations"]
    assert [one.get("unmet_terms") for one in found] == [[unmet], None, [unmet]]

    libre = {"q": ["w7 w4", "w5"], "source": "de", "target": "en", "api_key": KEY,
             "glossary": {"w4": ["w9 w10"], "w5": "w9"}}  # fmt: skip
    answer = keeping.post("/translate", libre)
    assert "w9 w10" in answer.json["translatedText"][0]
    assert "w9" in answer.json["translatedText"][1]
    assert answer.json["unmetTerms"] == [[], []]
    form = f"q=w4&source=auto&target=en&api_key={KEY}&glossary=%7B%22w4%22%3A%22w9%22%7D"
    answer = keeping.ask("POST", "/translate", form, FORM)
    assert "w9" in answer.json["translatedText"]
    assert answer.json["unmetTerms"] == []
    stored = ask(keeping, "POST", "/v2/glossaries", {**BODY, "entries": "w4\tw9 w10"}).json
    libre = {**libre, "glossary": stored["glossary_id"], "format": "html", "q": "<i>w7</i> w4"}
    assert "w9 w10" in keeping.post("/translate", libre).json["translatedText"]
    ask(keeping, "DELETE", f"/v3/glossaries/{stored['glossary_id']}")


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("/v1/translate", {"terms": [["w4", "w9"], ["w4", "w8"]]}, 422, "translated as 'w9', and"),
        ("/v1/translate", {"terms": [["w4", []]]}, 422, "neither a target phrase nor"),
        ("/v1/translate", {"terms": [["w4"]]}, 422, "terms[0]"),
        ("/v1/translate", {"terms": {"w4": "w9"}}, 422, "terms: "),
        ("/v1/translate", {"terms": [["w4", "w9"]] * 1001}, 422, "terms: "),
        ("/v1/translate", {"terms": [["w4", "w9"]], "stream": True}, 422, "are not streamed"),
        ("/translate", {"glossary": {"w4": ""}}, 400, "an empty phrase"),
        ("/translate", {"glossary": {"w4": 5}}, 400, "glossary: the target of 'w4' is neither"),
        ("/translate", {"glossary": {"w4": ["a", None]}}, 400, "neither a text nor a list of"),
        ("/translate", {"glossary": [["w4", "w9"]]}, 400, "glossary: should be an object"),
        ("/translate", {"glossary": {f"w{i}": "x" for i in range(1001)}}, 400, "1001 names"),
        ("/translate", {"glossary": [1]}, 400, "glossary"),
        ("/translate", {"glossary": "x"}, 404, "no glossary 'x'"),
        ("/translate", {"glossary": "x", "source": "auto"}, 400, "needs the language in source"),
        ("/v2/models/tiny/infer", {"parameters": {"terms": "x"}}, 400, "terms are not part of"),
    ],
)
def test_wrong_terms_are_refused(
    keeping: Server, path: str, body: dict[str, Any], status: int, said: str
) -> None:
    tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["w4"]}
    usual: dict[str, Any] = {
        "/v1/translate": {"texts": ["w4"]},
        "/translate": {"q": "w4", "source": "de", "target": "en", "api_key": KEY},
        "/v2/models/tiny/infer": {"inputs": [tensor]},
    }
    answer = keeping.ask("POST", path, {**usual[path], **body}, {"Authorization": f"Bearer {KEY}"})
    assert answer.status == status
    assert said in answer.json["error"]


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"entries": "w4\tw9\nw4\tw8\nw5\n\tx\n"}, 400, ["line 2: the source 'w4' is", "line 3:",
                                                         "line 4: the source is empty"]),
        ({"entries": "w4\tw9\tw8"}, 400, ["line 1: 2 tabs"]),
        ({"entries": "w\0\tx\na\tr\u202eb"}, 400, ["control character U+0000", "U+202E"]),
        ({"entries": "a,b,de,fr", "entries_format": "csv"}, 400, ["target language is fr, not en"]),
        ({"entries": ""}, 400, ["has no entry"]),
        ({"entries": "x" * 1_000_000}, 400, ["no tab between"]),
        ({"name": " "}, 400, ["name: is empty"]),
        ({"name": "n" * 1025}, 400, ["name: has more than"]),
        ({"source_lang": "../x"}, 400, ["source_lang: '../x' is not the code"]),
        ({"target_lang": "fr", "foo": 1}, 400, ["foo: "]),
    ],
)  # fmt: skip
def test_wrong_glossaries_are_refused(
    keeping: Server, body: dict[str, Any], status: int, said: list[str]
) -> None:
    answer = ask(keeping, "POST", "/v2/glossaries", {**BODY, **body})
    assert answer.status == status
    for text in said:
        assert text in answer.json["message"]


def test_ids_are_never_paths(keeping: Server, folder: Path) -> None:
    secret = folder.parent / "secret.glossary"
    secret.write_text("{}")
    for number in ("..%2Fsecret", "%2e%2e%2fsecret", "x", "0" * 36, "a" * 5000, "%00"):
        answer = ask(keeping, "GET", f"/v2/glossaries/{number}")
        assert answer.status == 404
        assert ask(keeping, "DELETE", f"/v3/glossaries/{number}").status == 404
    assert secret.exists()


def test_servers_of_one_folder_see_the_same(keeping: Server, folder: Path) -> None:
    form = "name=n&source_lang=de&target_lang=en-US&entries=w4%09w9"
    made = ask(keeping, "POST", "/v2/glossaries", form, **FORM).json
    assert made["target_lang"] == "en"
    other = GlossaryFolder(folder)  # of another process, or after a restart
    number = made["glossary_id"]
    assert other.entries(number, BOTH) == {"w4": "w9"}
    other.change(number, lambda one: merged(one, {BOTH: {"w5": "w6"}}, "new"))
    path = f"/v2/glossaries/{number}"
    assert ask(keeping, "GET", path).json == {**made, "name": "new", "entry_count": 2}
    answer = ask(keeping, "GET", f"{path}/entries", Accept="text/tab-separated-values")
    assert answer.body == b"w4\tw9\nw5\tw6"
    assert ask(keeping, "GET", f"{path}/entries", Accept="text/csv").status == 415
    other.delete(number)
    assert ask(keeping, "GET", path).status == 404


def test_without_a_folder_the_calls_say_how(server: Server) -> None:
    for method, path in (("GET", "/v2/glossaries"), ("GET", "/v3/glossaries"),
                         ("POST", "/v2/glossaries")):  # fmt: skip
        answer = server.ask(method, path, BODY if method == "POST" else None)
        assert answer.status == 404
        assert "setting glossaries" in answer.json["message"]


def test_writers_do_not_lose_what_others_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_WAIT", 60.0)  # on a busy machine
    stores = [GlossaryFolder(tmp_path) for _ in range(2)]
    number = stores[0].create("n", {BOTH: {"a": "b"}}).id
    reading = threading.Event()

    def write(place: int) -> None:
        store = stores[place % 2]
        store.change(number, lambda one: merged(one, {BOTH: {f"w{place}": "x"}}))
        store.delete(store.create(f"g{place}", {BOTH: {"a": "b"}}).id)

    def read() -> int:
        count = 0
        while not reading.is_set():
            assert stores[0].entries(number, BOTH)["a"] == "b"
            assert all(one.name for one in stores[1].listed())
            count += 1
            time.sleep(0.001)  # lets writers have the interpreter
        return count

    with ThreadPoolExecutor(5) as pool:
        reads = pool.submit(read)
        try:
            list(pool.map(write, range(16)))
        finally:
            reading.set()  # the pool waits for the reader
        assert reads.result() > 0
    assert set(stores[1].entries(number, BOTH)) == {"a", *(f"w{place}" for place in range(16))}
    assert [one.id for one in stores[0].listed()] == [number]
    assert {path.name for path in tmp_path.iterdir()} == {f"{number}.glossary"}


def test_limits_and_damage_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = GlossaryFolder(tmp_path)
    number = store.create("n", {BOTH: {"a": "b"}}).id
    monkeypatch.setattr(module, "MOST_GLOSSARIES", 1)
    with pytest.raises(RequestError, match="as many as are allowed"):
        store.create("m", {BOTH: {"a": "b"}})
    monkeypatch.setattr(module, "MOST_BYTES", 10)
    with pytest.raises(RequestError, match="10 at most"):
        store.change(number, lambda one: merged(one, {BOTH: {"c" * 10: "d"}}))
    (tmp_path / f"{number}.glossary").write_text(json.dumps({"name": "n"}))
    with pytest.raises(RequestError, match="damaged"):
        store.entries(number, BOTH)
    assert store.listed() == []
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="name a folder"):
        GlossaryFolder(tmp_path / "file" / "x")


def test_one_odd_file_does_not_hide_the_others(tmp_path: Path) -> None:
    kept = GlossaryFolder(tmp_path)
    made = kept.create("a", {BOTH: {"w4": "w9"}})
    odd = [f"{number}" * 8 + "-0000-0000-0000-000000000000.glossary" for number in range(4)]
    (tmp_path / odd[0]).mkdir()
    (tmp_path / odd[1]).write_text('{"dictionaries": 3, "name": 1, "created": 2}\n')
    (tmp_path / odd[2]).write_text("[" * 100_000)
    (tmp_path / odd[3]).write_text("\n")
    assert [one.id for one in kept.listed()] == [made.id]
    for name in odd:
        with pytest.raises(RequestError, match="damaged"):
            kept.info(name.removesuffix(".glossary"))


def test_a_folder_that_cannot_be_used_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = GlossaryFolder(tmp_path / "folder")
    made = kept.create("a", {BOTH: {"w4": "w9"}})

    def full(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module, "new_file", full)
        with pytest.raises(RequestError, match="No space left on device") as caught:
            kept.create("b", {BOTH: {"w4": "w9"}})
        assert caught.value.status == 507
    assert [one.id for one in kept.listed()] == [made.id]
    shutil.rmtree(tmp_path / "folder")
    for call in (kept.listed, lambda: kept.create("b", {}), lambda: kept.delete(made.id)):
        with pytest.raises(RequestError, match="No such file") as caught:
            call()
        assert caught.value.status == 503
