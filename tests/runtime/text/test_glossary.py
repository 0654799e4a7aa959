"""Files of glossaries: TSV, CSV and TBX."""

import csv
import io
import time
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfexport.errors import InputError
from tfexport.runtime.text.glossary import parse_csv, parse_tsv, size_of, write_tsv
from tfexport.runtime.text.glossary_files import read_glossary
from tfexport.runtime.text.tbx import parse_tbx

pytestmark = pytest.mark.no_model

PHRASES = st.text(st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp")), min_size=1).filter(
    lambda text: text == text.strip()
    and not any(unicodedata.bidirectional(c) in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI",
                                                  "FSI", "PDI") for c in text)
)  # fmt: skip
OLD = """<?xml version="1.0" encoding="{encoding}"?>
<!DOCTYPE martif SYSTEM "TBXBasiccoreStructV02.dtd">
<martif type="TBX-Basic" xml:lang="en"><martifHeader><fileDesc/></martifHeader><text><body>
<termEntry id="1"><descrip type="definition">a definition</descrip>
 <langSet xml:lang="de-DE">
  <tig><term>Straße</term></tig>
  <ntig><termGrp><term>Fahr<hi>bahn</hi></term></termGrp></ntig></langSet>
 <langSet xml:lang="en-US">
  <tig><term>road</term></tig>
  <tig><term>way</term>
   <termNote type="administrativeStatus">deprecatedTerm-admn-sts</termNote></tig>
  <tig><term>main
   street</term><termNote type="partOfSpeech">noun</termNote>
   <termNote type="administrativeStatus">preferredTerm-admn-sts</termNote></tig></langSet>
 <langSet xml:lang="fr"><tig><term>rue</term></tig></langSet></termEntry>
<termEntry id="2"><langSet xml:lang="de"><tig><term>Straße</term></tig></langSet>
 <langSet xml:lang="en"><tig><term>street</term></tig></langSet></termEntry>
</body></text></martif>"""
NEW = """<tbx type="TBX-Basic" style="dct" xml:lang="de" xmlns="urn:iso:std:iso:30042:ed-2"
 xmlns:basic="http://www.tbxinfo.net/ns/basic"><tbxHeader/><text><body><conceptEntry id="c">
 <langSec xml:lang="deu"><termSec><term>Baum</term></termSec></langSec>
 <langSec xml:lang="en"><termSec><term>shrub</term>
   <basic:administrativeStatus>obsolete</basic:administrativeStatus></termSec>
  <termSec><term>tree &amp; more</term></termSec></langSec></conceptEntry></body></text></tbx>"""


@settings(deadline=None, max_examples=50)
@given(st.dictionaries(PHRASES, PHRASES, min_size=1))
def test_what_is_written_is_read(entries: dict[str, str]) -> None:
    wanted = {source: (target,) for source, target in entries.items()}
    text = write_tsv(wanted)
    assert parse_tsv(text, alternatives=False).entries == wanted
    assert size_of(wanted) == len(text.encode()) + 1
    rows = io.StringIO()
    csv.writer(rows).writerows([*entry, "DE", "en"] for entry in entries.items())
    assert parse_csv(rows.getvalue()).entries == wanted
    assert parse_csv(rows.getvalue()).languages == ("de", "en")


def test_targets_after_the_first_are_alternatives(tmp_path: Path) -> None:
    path = tmp_path / "terms.tsv"
    path.write_bytes("\ufeff Haus \thouse\r\n\r\nBaum\ttree\ttrees \ttree".encode())
    assert read_glossary(path).entries == {"Haus": ("house",), "Baum": ("tree", "trees")}


def test_all_wrong_lines_are_named() -> None:
    text = "a\tb\nHaus\na\tc\n\n\tx\ny\t \nn\0\tx\nr\tx\u202ey\nl\tp\u2028q\n" + "x" * 1001 + "\ty"
    with pytest.raises(InputError) as raised:
        parse_tsv(text)
    for said in (
        "8 problems", "line 2: 'Haus' has no tab", "line 3: the source 'a' is that of line 1",
        "line 5: the source is empty", "line 6: the target is empty", "line 7: the source 'n\\x00'",
        "line 8: the target 'x\\u202ey' has U+202E", "line 9: the target 'p\\u2028q' has the",
        "line 10: the source 'xxx",
    ):  # fmt: skip
        assert said in str(raised.value)
    with pytest.raises(InputError, match="line 1: 2 tabs"):
        parse_tsv("a\tb\tc", alternatives=False)
    with pytest.raises(InputError, match="line 3: 3 columns") as raised:
        parse_csv('"a ""b""",c\nd,e,de,en\nf,g,h\ni,j,de,fr\n"k')
    assert "line 4: is de-fr, and line 2 is de-en" in str(raised.value)
    assert "line 5: is not CSV" in str(raised.value)


@pytest.mark.parametrize("encoding", ["utf-8", "iso-8859-1", "utf-16"])
def test_terms_of_both_editions_of_tbx_are_found(encoding: str) -> None:
    found = parse_tbx(OLD.format(encoding=encoding).encode(encoding), "DE", "en-GB")
    assert found.entries == {
        "Straße": ("main street", "road", "street"), "Fahrbahn": ("main street", "road"),
    }  # fmt: skip
    assert parse_tbx(NEW.encode(), "de", "en").entries == {"Baum": ("tree & more",)}
    assert parse_tbx(OLD.format(encoding="utf-8").encode(), "fr", "de").entries == {
        "rue": ("Straße", "Fahrbahn")
    }
    with pytest.raises(InputError, match="no terms from de to ja; its languages: de-DE, en-US"):
        parse_tbx(OLD.format(encoding="utf-8").encode(), "de", "ja")


LAUGHS = "<!DOCTYPE tbx [<!ENTITY a 'ha'>" + "".join(
    f"<!ENTITY {name} '{f'&{before};' * 10}'>"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("x.tbx", f"{LAUGHS}]><tbx>&i;</tbx>", "declares the entity 'a'"),
        ("x.tbx", "<!DOCTYPE tbx [<!ENTITY x SYSTEM 'file:///x'>]><tbx>&x;</tbx>", "the entity"),
        ("x.tbx", "<tbx>" + "<a>" * 10_000, "more than 100 elements"),
        ("x.tbx", "<html/>", "its root is 'html'"),
        ("x.tbx", "<tbx><b></tbx>", "line 1: not well-formed XML: mismatched tag"),
        ("x.tbx", "<?xml version='1.0' encoding='x-none'?><tbx/>", "not XML"),
        ("x.tbx", NEW.replace("tree", "\u202e"), "line 6: the target"),
        ("x.tbx", NEW.replace("Baum", "B" * 10_000_000), "a term has more than"),
        ("x.tsv", "x" * 10_000_000, "line 1: 'xxx"),
        ("x.tsv", "x" * 10_500_000, "more than 10,485,760 bytes"),
        ("x.tsv", "a\tb\n" * 1_000_000, "and 1,000 more problems"),
        ("x.csv", '"' + "x" * 10_000_000, "is not CSV: field larger"),
        ("x.csv", "a,b,de,fr", "its target language is fr, not en"),
        ("x.tsv", "", "has no entry"),
        ("x.txt", "a\tb", "its name has to end in .tsv, .csv, .tbx"),
        ("x.tsv", b"a\tb\n\xff", "line 2: is not UTF-8"),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else "bytes",
)  # fmt: skip
def test_hostile_files_are_refused_soon(
    tmp_path: Path, name: str, content: str | bytes, said: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    begun = time.process_time()
    with pytest.raises(InputError) as raised:
        read_glossary(path, "de", "en")
    assert time.process_time() - begun < 2
    text = str(raised.value)
    assert text.startswith(str(path))
    assert said in text
    assert len(text) < 3000


def test_tbx_needs_its_languages(tmp_path: Path) -> None:
    path = tmp_path / "x.tbx"
    path.write_text(NEW)
    assert read_glossary(path, "de", "en").entries
    with pytest.raises(InputError, match="name them with languages='de-en'"):
        read_glossary(path, "de")
