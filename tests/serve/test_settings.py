"""Settings of a server: the file, the environment, the command line, and which of them counts."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from tests.serve.servers import serving
from tests.serve.test_texts import changed
from tests.support.command import COMMANDS, invoke
from tests.support.documents import read_blocks
from tests.support.paths import REPOSITORY
from tfexport.errors import ConfigError
from tfexport.runtime import Translator
from tfexport.runtime.options import SPECS, check_options
from tfexport.serve.access import Keys
from tfexport.serve.settings import ModelSettings, Settings, read_settings

PAGE = REPOSITORY / "docs" / "serving.md"
KNOWN = ["port", "timeout", "api_key_file", "cors_origins"]
FILE = """
bundles = ["tiny.bundle", "/models/other.bundle"]
port = 9000
api_key_file = "keys.txt"

[decoding]
beam_size = 4
max_length = 100

[models.tiny]
languages = "de,fr-en"
split_sentences = "none"
join = "spaces"
slots = 8

[models.tiny.decoding]
beam_size = 2
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "serve.toml"
    path.write_text(text)
    return path


def test_a_file_has_settings_of_the_server_and_of_each_model(tmp_path: Path) -> None:
    found = read_settings(written(tmp_path, FILE), KNOWN)
    assert found.bundles == (str(tmp_path / "tiny.bundle"), "/models/other.bundle")
    assert found.server == {"port": 9000, "api_key_file": str(tmp_path / "keys.txt")}
    models = found.settings_of(["tiny", "other"])
    assert models["other"] == ModelSettings(decoding={"beam_size": 4, "max_length": 100})
    assert models["tiny"] == ModelSettings(
        "de,fr-en", "none", "spaces", slots=8, decoding={"beam_size": 2, "max_length": 100}
    )


def test_the_file_of_the_docs_has_every_setting(tmp_path: Path) -> None:
    (block,) = [one for one in read_blocks(PAGE) if one.language == "toml"]
    options = {one.name for one in COMMANDS["serve"].params}
    known = options - {*SPECS, "bundles", "config", "languages", "split_sentences"}
    found = read_settings(written(tmp_path, block.text), [*map(str, known)])
    assert set(found.server) == known - {"uds"}  # instead of a host and port
    table = block.text.partition("[models.nllb]")[2].partition("\n[")[0]
    settings = set(re.findall(r"^(\w+) = ", table, re.MULTILINE))
    assert {*settings, "decoding"} == {one.name for one in fields(ModelSettings)}
    for own in found.settings_of([]).values():
        assert not check_options(own.decoding)[1]
    Settings(models=found.settings_of(["nllb", "de-en"]), decoding=found.decoding)


def test_what_is_wrong_in_a_file_is_named_at_once(tmp_path: Path) -> None:
    text = """
    prot = 9000
    bundles = "x"
    [models]
    other = 1
    [models.tiny]
    languages = "german"
    splitt = "x"
    join = "x"
    slots = 0
    """
    with pytest.raises(ConfigError) as raised:
        read_settings(written(tmp_path, text), KNOWN)
    for said in (
        "prot: is not a setting; did you mean 'port'?", "bundles: 'x' is not a list",
        "models.other: 1 is not a table", "models.tiny.splitt: is not a setting",
        "models.tiny.languages: 'german'", "models.tiny.join: 'x' of tiny is not one of auto",
        "models.tiny.slots: 0 of tiny is not a number from 1 on",
    ):  # fmt: skip
        assert said in str(raised.value)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not TOML"):
        read_settings(written(tmp_path, '{"port": 1}'), KNOWN)


def test_the_command_line_counts_over_the_file_over_the_bundle() -> None:
    settings = Settings(
        decoding={"beam_size": 5}, slots=16,
        models={"a": ModelSettings(slots=8, decoding={"beam_size": 2, "max_length": 50})},
    )  # fmt: skip
    assert settings.of("a").decoding == {"beam_size": 5, "max_length": 50}
    assert (settings.of("a").slots, settings.of("b").slots) == (8, 16)


def tokens(server: Any, **options: Any) -> Any:
    body = {"texts": ["w4 w5"], "options": options}
    return server.post("/v1/translate", body).json["translations"][0]["tokens"]


def test_decoding_defaults_are_those_of_every_protocol(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = changed(tiny_bundle, tmp_path / "de-en.bundle", generation={"max_length": 2})
    path = written(tmp_path, f"bundles = ['{bundle.name}']\n[decoding]\nmax_length = 3\n"
                   "suppress_tokens = ['w16']\n[models.de-en.decoding]\nmax_length = 4\n",
                   )  # fmt: skip
    translator = Translator(tiny_bundle, threads=1)

    def wanted(length: int) -> Any:
        made = translator.translate(["w4 w5"], max_length=length, suppress_tokens=["w16"])
        return made[0].hypotheses[0].tokens, made[0].text

    with serving(tmp_path, "--config", path) as running:
        assert tokens(running) == wanted(4)[0]
        assert tokens(running, max_length=6) == wanted(6)[0]
        libre = {"q": "w4 w5", "source": "de", "target": "en"}
        assert running.post("/translate", libre).json["translatedText"] == wanted(4)[1]
        deepl = {"text": ["w4 w5"], "target_lang": "EN-GB"}
        answer = running.post("/v2/translate", deepl).json
        assert answer["translations"][0]["text"] == wanted(4)[1]
        assert "the limit of its bundle" not in running.log.read_text(), "the operator says it"
    monkeypatch.setenv("TFEXPORT_SERVE_MAX_LENGTH", "5")
    monkeypatch.setenv("TFEXPORT_SERVE_CONFIG", str(path))
    with serving(tmp_path) as running:
        assert tokens(running) == wanted(5)[0]
    with serving(tmp_path, "--max-length", 7) as running:
        assert tokens(running) == wanted(7)[0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--beam-size", "33"], "tiny: its decoding defaults: beam_size: 33 is more than the 32"),
        (["--beam-size", "4", "--sampling"], "tiny: its decoding defaults: "),
        (["--suppress-tokens", "nonsense"], "'nonsense' is not a token of the vocabulary"),
        (["--split-sentences", "tiny=never"], "--split-sentences: 'never' of tiny is not one of"),
        (["--split-sentences", "never"], "--split-sentences: 'never' is not NAME=none"),
        (["--cors-origin", "example.org"], "write 'https://example.org'"),
        (["--cors-origin", "https://x.org/"], "write 'https://x.org'"),
        (["--cors-origin", "HTTPS://X.org:443"], "write 'https://x.org'"),
        (["--cors-origin", "https://"], "is not an origin such as"),
    ],
)
def test_wrong_settings_are_named_before_anything_is_served(
    tiny_bundle: Path, options: list[str], said: str
) -> None:
    done = invoke("serve", tiny_bundle, "--port", "0", *options)
    assert done.exit_code == 2
    assert said in done.stderr


@pytest.mark.parametrize("origin", ["*", "https://example.org", "http://localhost:3000",
                                    "http://[::1]:80000".replace("80000", "8000")])  # fmt: skip
def test_origins_as_browsers_send_them_are_taken(origin: str) -> None:
    assert Settings(cors_origins=(origin,)).cors_origins == (origin,)


def test_bundles_have_to_be_given_somewhere(tmp_path: Path) -> None:
    done = invoke("serve", "--config", written(tmp_path, "port = 0\n"))
    assert done.exit_code == 2
    assert "Missing argument 'BUNDLE...'" in done.stderr
    done = invoke("serve", "--config", written(tmp_path, "bundels = []\n"))
    assert "did you mean 'bundles'?" in done.stderr


def test_comments_and_blank_lines_are_no_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_bytes(b"\xef\xbb\xbf# of the team\r\n  real-key \r\n\n#other\n")
    keys = Keys.read(path)
    assert keys.allow(b"real-key")
    assert not any(map(keys.allow, (b"# of the team", b"#other", b"", b"of the team")))


@pytest.mark.parametrize("line", [b"two words", b"tab\there", b"\xff\xfe", b"bell\a"])
def test_keys_that_nobody_can_send_are_refused(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "keys"
    path.write_bytes(b"good\n" + line + b"\n")
    with pytest.raises(ConfigError, match="line 2 is not a key"):
        Keys.read(path)
