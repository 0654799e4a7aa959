"""Clients of other projects, unchanged, as their own documentation shows them."""

import contextlib
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.serve.servers import Server, serving
from tfexport.runtime import Translator

KEY = "secret-key"
TEXTS = ["w4 w5", "w6"]

pytestmark = pytest.mark.peers


@pytest.fixture(scope="module", name="keyed")
def _keyed(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("keyed")
    keys = folder / "keys.txt"
    keys.write_text(f"{KEY}\n")
    with serving(folder, tiny_bundle, "--languages", "tiny=de-en", "--api-key-file", keys) as found:
        yield found


@pytest.fixture(name="wanted")
def _wanted(translator: Translator) -> list[str]:
    return [str(one.text) for one in translator.translate(TEXTS)]


def client(name: str) -> Any:
    """A client's module, or a reason to skip the test."""
    return pytest.importorskip(name, reason=f"{name} is not installed; see `make optional`")


def test_libretranslatepy(
    keyed: Server, server: Server, translator: Translator, wanted: list[str]
) -> None:
    api = client("libretranslatepy").LibreTranslateAPI
    for one in (api(server.url), api(keyed.url, api_key=KEY)):
        assert one.translate("w4 w5", "de", "en") == wanted[0]
        assert [found["code"] for found in one.languages()] == ["de", "en"]
    # It has no option for a format: HTML comes as plain text, as LibreTranslate itself reads it.
    html = "w4 <b> w5 </b>"
    (plain,) = translator.translate([html])
    assert api(server.url).translate(html, "de", "en") == plain.text
    error = importlib.import_module("urllib.error").HTTPError
    with pytest.raises(error, match="403") as raised:
        api(keyed.url, api_key="wrong").translate("w4", "de", "en")
    raised.value.close()


def test_deepl(keyed: Server, wanted: list[str]) -> None:
    deepl = client("deepl")
    with contextlib.closing(deepl.DeepLClient(KEY, server_url=keyed.url)) as api:
        found = api.translate_text(TEXTS, target_lang="EN-US")
        assert [one.text for one in found] == wanted
        assert {one.detected_source_lang for one in found} == {"DE"}
        assert [one.billed_characters for one in found] == [5, 2]
        one = api.translate_text(
            "w4 w5", source_lang="DE", target_lang="EN-GB", split_sentences="0",
            preserve_formatting=True, formality="prefer_more",
        )  # fmt: skip
        assert one.text == wanted[0]
        assert [found.code for found in api.get_source_languages()] == ["DE"]
        targets = api.get_target_languages()
        assert [(one.code, one.supports_formality) for one in targets] == [
            ("EN-GB", False), ("EN-US", False),
        ]  # fmt: skip
        for one in targets:  # its client refuses those that it calls deprecated
            assert api.translate_text("w4 w5", target_lang=one.code).text == wanted[0]
        for text, kind in (
            ("<p>w4 w5</p><code>w6</code>", "html"),
            ("<p>w4 w5</p><x>w6</x>", "xml"),
        ):
            one = api.translate_text(
                text, target_lang="EN-US", tag_handling=kind, ignore_tags=["x"],
                splitting_tags=["p"], non_splitting_tags="b", outline_detection=False,
            )  # fmt: skip
            assert one.text == text.replace("w4 w5", wanted[0])
        kept = [
            "<p>w4 <b id='1'>w5</b></p>",
            "<p translate='no'>w6</p> <i class='notranslate'>w7</i>",
        ]
        for kind, version in (("html", None), ("html", "v1"), ("xml", "v2")):
            found = api.translate_text(
                kept, target_lang="EN-US", tag_handling=kind, tag_handling_version=version,
                ignore_tags="x,i",
            )  # fmt: skip
            first = found[0].text
            assert re.findall("<[^>]*>", first) == ["<p>", "<b id='1'>", "</b>", "</p>"]
            assert "".join(re.sub("<[^>]*>", "", first).split()) == wanted[0].replace(" ", "")
            assert found[1].text == kept[1]
        with pytest.raises(deepl.DeepLException, match="not well-formed XML"):
            api.translate_text("<p>w4", target_lang="EN-US", tag_handling="xml")
        usage = api.get_usage()
        assert usage.character.count >= 7
        assert not usage.any_limit_reached
        with pytest.raises(deepl.DeepLException, match="formality: not supported by this server"):
            api.translate_text("w4", target_lang="EN-US", formality="more")
    with (
        contextlib.closing(deepl.DeepLClient("wrong", server_url=keyed.url)) as api,
        pytest.raises(deepl.AuthorizationException),
    ):
        api.translate_text("w4", target_lang="EN-US")


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:MonkeyPatch")
@pytest.mark.parametrize("binary", [True, False])
def test_tritonclient(server: Server, translator: Translator, binary: bool) -> None:
    http = client("tritonclient.http")
    texts = np.array([[text.encode()] for text in TEXTS], object)
    given = http.InferInput("text", [2, 1], "BYTES")
    given.set_data_from_numpy(texts, binary_data=binary)
    ids = http.InferInput("input_ids", [1, 3], "INT64")
    ids.set_data_from_numpy(np.array([[4, 5, 2]], np.int64), binary_data=binary)
    with http.InferenceServerClient(f"127.0.0.1:{server.port}") as api:
        assert api.is_server_live()
        assert api.is_server_ready()
        assert api.is_model_ready("tiny")
        assert api.get_server_metadata()["name"] == "tfexport"
        described = api.get_model_metadata("tiny")
        outputs = [http.InferRequestedOutput("translation", binary_data=binary)]
        for asked in (None, outputs):
            found = api.infer("tiny", [given], outputs=asked, request_id="7")
            made = found.as_numpy("translation")
            wanted = [one.text for one in translator.translate(TEXTS)]
            assert made.shape == (2, 1)
            assert [text.decode() if isinstance(text, bytes) else text
                    for text in made[:, 0]] == wanted  # fmt: skip
            assert found.get_response()["id"] == "7"
        found = api.infer("tiny", [ids], model_version=described["versions"][0],
                          parameters={"beam_size": 2})  # fmt: skip
        rows = translator.generate([[4, 5, 2]], beam_size=2, return_end_token=True)
        assert found.as_numpy("sequences").tolist() == [rows[0].hypotheses[0].tokens]
        error = importlib.import_module("tritonclient.utils").InferenceServerException
        with pytest.raises(error, match="no model 'none'"):
            api.get_model_metadata("none")
