"""Languages of models, and their codes: models, protocols and libraries write them differently."""

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tfexport.errors import ConfigError, Message, Option, join_some
from tfexport.languages import Languages
from tfexport.runtime.text.codec import LanguagePair

# The shortest code, codes of ISO 639-3 and others with the same meaning, and the English name. In a
# group of languages, such as Arabic, the code of the standard language also means the group.
_TABLE = """
ace Acehnese|af/afr Afrikaans|am/amh Amharic|ar/ara/arb Arabic|as/asm Assamese|ast Asturian
awa Awadhi|ay/aym/ayr Aymara|az/aze/azj Azerbaijani|ba/bak Bashkir|ban Balinese|be/bel Belarusian
bem Bemba|bg/bul Bulgarian|bho Bhojpuri|bm/bam Bambara|bn/ben Bengali|bo/bod/tib Tibetan
br/bre Breton|bs/bos Bosnian|bug Buginese|ca/cat Catalan|ceb Cebuano|ckb Central Kurdish
co/cos Corsican|crh Crimean Tatar|cs/ces/cze Czech|cy/cym/wel Welsh|da/dan Danish
de/deu/ger German|dik Dinka|dyu Dyula|dz/dzo Dzongkha|ee/ewe Ewe|el/ell/gre Greek|en/eng English
eo/epo Esperanto|es/spa Spanish|et/est/ekk Estonian|eu/eus/baq Basque|fa/fas/per/pes/prs Persian
ff/ful/fuv Fulah|fi/fin Finnish|fj/fij Fijian|fo/fao Faroese|fon Fon|fr/fra/fre French
fur Friulian|fy/fry Western Frisian|ga/gle Irish|gd/gla Scottish Gaelic|gl/glg Galician
gn/grn Guarani|gu/guj Gujarati|ha/hau Hausa|he/heb/iw Hebrew|hi/hin Hindi|hne Chhattisgarhi
hr/hrv Croatian|hsb Upper Sorbian|ht/hat Haitian Creole|hu/hun Hungarian|hy/hye/arm Armenian
id/ind/in Indonesian|ig/ibo Igbo|ilo Iloko|is/isl/ice Icelandic|it/ita Italian|ja/jpn Japanese
jv/jav/jw Javanese|ka/kat/geo Georgian|kab Kabyle|kac Kachin|kam Kamba|kbp Kabiye
kea Kabuverdianu|ki/kik Kikuyu|kk/kaz Kazakh|km/khm Khmer|kmb Kimbundu|kn/kan Kannada
ko/kor Korean|ks/kas Kashmiri|ku/kur/kmr Kurdish|kg/kon/kng Kongo|ky/kir Kyrgyz|la/lat Latin
lb/ltz Luxembourgish|lg/lug Ganda|li/lim Limburgish|lij Ligurian|lmo Lombard|ln/lin Lingala
lo/lao Lao|lt/lit Lithuanian|ltg Latgalian|lua Luba-Lulua|luo Luo|lus Mizo|lv/lav/lvs Latvian
mag Magahi|mai Maithili|mg/mlg/plt Malagasy|mi/mri/mao Maori|min Minangkabau
mk/mkd/mac Macedonian|ml/mal Malayalam|mn/mon/khk Mongolian|mni Manipuri|mos Mossi|mr/mar Marathi
ms/msa/may/zsm Malay|mt/mlt Maltese|my/mya/bur Burmese|nb/nob/no/nor Norwegian
ne/nep/npi Nepali|nl/nld/dut Dutch|nn/nno Norwegian Nynorsk|nso Northern Sotho|nus Nuer
ny/nya Chichewa|oc/oci Occitan|om/orm/gaz Oromo|or/ori/ory Odia|pa/pan Punjabi|pag Pangasinan
pap Papiamento|pl/pol Polish|ps/pus/pbt Pashto|pt/por Portuguese|qu/que/quy Quechua
rn/run Rundi|ro/ron/rum/mo Romanian|ru/rus Russian|rw/kin Kinyarwanda|sa/san Sanskrit|sat Santali
sc/srd Sardinian|scn Sicilian|sd/snd Sindhi|sg/sag Sango|shn Shan|si/sin Sinhala|sk/slk/slo Slovak
sl/slv Slovenian|sm/smo Samoan|sn/sna Shona|so/som Somali|sq/sqi/alb/als Albanian|sr/srp Serbian
ss/ssw Swati|st/sot Southern Sotho|su/sun Sundanese|sv/swe Swedish|sw/swa/swh Swahili
szl Silesian|ta/tam Tamil|taq Tamasheq|te/tel Telugu|tg/tgk Tajik|th/tha Thai|ti/tir Tigrinya
tk/tuk Turkmen|tl/tgl/fil Tagalog|tn/tsn Tswana|tpi Tok Pisin|tr/tur Turkish|ts/tso Tsonga
tt/tat Tatar|tum Tumbuka|tw/twi Twi|tzm Central Atlas Tamazight|ug/uig Uyghur|uk/ukr Ukrainian
umb Umbundu|und Undetermined|ur/urd Urdu|uz/uzb/uzn Uzbek|vec Venetian|vi/vie Vietnamese
war Waray|wo/wol Wolof|xh/xho Xhosa|yi/yid/ydd/ji Yiddish|yo/yor Yoruba|yue Cantonese
zh/zho/chi/cmn Chinese|zu/zul Zulu
"""
_ENTRIES = [
    entry.split(" ", 1) for line in _TABLE.strip().splitlines() for entry in line.split("|")
]
_NAMES = {codes.split("/")[0]: name for codes, name in _ENTRIES}
_SHORTEST = {code: codes.split("/")[0] for codes, _ in _ENTRIES for code in codes.split("/")}
# Older codes of LibreTranslate, and scripts that regions write.
_WHOLE = {"zt": "zh-Hant", "pb": "pt-BR"}
_SCRIPTS = {"tw": "Hant", "hk": "Hant", "mo": "Hant", "cn": "Hans", "sg": "Hans"}
_SCRIPT_NAMES = {"Hans": "simplified", "Hant": "traditional"}
_CODE = r"[a-z]{2,3}(?:_[a-z\d]{2,8})*"
_CODES = rf"{_CODE}(?:,{_CODE})*"
PAIR = re.compile(rf"({_CODES})-({_CODES})", re.IGNORECASE)
PAIR_OF_NAME = re.compile(r"([a-z]{2,3})-([a-z]{2,3})", re.IGNORECASE)
UNKNOWN = "und"
_MARK = re.compile(r">>\s*([^<>\s]+)\s*<<|<2([^<>\s]+)>|__([^_\s]+)__")


@dataclass(frozen=True)
class Code:
    """A language code in its parts.

    Attributes:
        language: by its shortest code, in lower case: "de" of ``deu_Latn``, ``DE-at``, ``>>deu<<``.
        script: four letters such as "Latn"; empty if the code has none. A region of Chinese implies
            one.
        region: two letters or three digits, in capitals; empty if the code has none.
    """

    language: str
    script: str = ""
    region: str = ""

    @classmethod
    def of(cls, text: str) -> "Code":
        """Read a code; a code of unknown form is a language without script and region."""
        mark = _MARK.fullmatch(text.strip())
        plain = next(filter(None, mark.groups())) if mark else text.strip()
        plain = _WHOLE.get(plain.lower(), plain).replace("_", "-")
        language, *parts = plain.lower().split("-")
        language = _SHORTEST.get(language, language)
        script = region = ""
        for part in parts:
            if not script and re.fullmatch("[a-z]{4}", part):
                script = part.title()
            elif not region and re.fullmatch(r"[a-z]{2}|\d{3}", part):
                region = part
        if region == "xx":  # as mBART writes a missing region
            region = ""
        if language == "zh" and not script:
            script = _SCRIPTS.get(region, "")
        return cls(language, script, region.upper())

    def __str__(self) -> str:
        """The code as BCP 47 writes it."""
        return "-".join(filter(None, (self.language, self.script, self.region)))

    def likeness(self, other: "Code") -> int:
        """How well another code fits; 0 if its language or script differs."""
        if self.language != other.language:
            return 0
        if self.script and other.script and self.script != other.script:
            return 0
        # Chinese without a script is simplified if a model can write both.
        mine, others = (one.script or _usual_script(one.language) for one in (self, other))
        return 1 + 2 * (mine == others) + (self.region == other.region)


def match_code(code: str, known: Sequence[str]) -> str | None:
    """The known code that equals another in meaning or fits best; None if none fits."""
    if code in known:
        return code
    written = {_folded(name): name for name in reversed(known)}
    if (same := written.get(_folded(code))) is not None:
        return same
    wanted = Code.of(code)
    likeness = {name: wanted.likeness(Code.of(name)) for name in known}
    best = max(known, key=lambda name: likeness[name], default=None)
    return best if best is not None and likeness[best] else None


def listed_codes(known: Sequence[str]) -> dict[str, str]:
    """Map the short codes that protocols list to known codes; ``match_code`` accepts both.

    The short one of ``deu_Latn`` is "de". A script or region is kept if two codes differ in it, and
    always for Chinese.
    """
    found: dict[str, str] = {}
    parsed = {name: Code.of(name) for name in known}
    for name, code in parsed.items():
        same = [other for other in parsed.values() if other.language == code.language]
        script = code.script if code.language == "zh" or _differ(same, "script") else ""
        region = code.region if _differ(same, "region") and not _differ(same, "script") else ""
        short = str(Code(code.language, script, region))
        found.setdefault(short if match_code(short, known) == name else name, name)
    return found


def language_name(code: str) -> str:
    """The English name of a language; its code if the name is unknown."""
    parts = Code.of(code)
    name = _NAMES.get(parts.language)
    if name is None:
        return code
    script = _SCRIPT_NAMES.get(parts.script) if parts.language == "zh" else None
    return f"{name} ({script})" if script else name


@functools.lru_cache(64)
def splitting_code(code: str) -> str:
    """The code that sentence splitting uses."""
    return Code.of(code).language


def _differ(codes: Iterable[Code], part: str) -> bool:
    return len({getattr(code, part) for code in codes}) > 1


def _folded(code: str) -> str:
    return code.strip().lower().replace("_", "-")


def _usual_script(language: str) -> str:
    return {"zh": "Hans"}.get(language, "")


NAMES: Mapping[str, str] = _NAMES


@dataclass(frozen=True)
class ModelLanguages:
    """The languages of a model.

    Attributes:
        sources: codes that it reads; empty if unknown.
        targets: codes that it writes; empty if unknown.
        default_source: the one that it reads if the request names none.
        token_sides: the sides, "source" and "target", that have a language token.
    """

    sources: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    default_source: str | None = None
    token_sides: frozenset[str] = frozenset()

    @classmethod
    def of(cls, name: str, known: Languages | None, given: str | None) -> "ModelLanguages":
        """The languages of a model.

        Args:
            name: the name of the model; ``de-en`` is read as a pair.
            known: by its bundle.
            given: by the operator of the server, such as "de-en" or "de,fr-en".

        Raises:
            ConfigError: the bundle does not have a given language.
        """
        found = None if known is None else _of_bundle(known)
        match = PAIR.fullmatch(given) if given else PAIR_OF_NAME.fullmatch(name)
        if match is None or (found is not None and not given):
            return found or cls()
        sources, targets = (tuple(match[side].split(",")) for side in (1, 2))
        if found is not None:
            return found._restricted(name, sources, targets)
        if not given:
            sources, targets = (sources[0].lower(),), (targets[0].lower(),)
        return cls(sources, targets, sources[0] if len(sources) == 1 else None)

    def _restricted(
        self, name: str, sources: Sequence[str], targets: Sequence[str]
    ) -> "ModelLanguages":
        """These languages without the others of the bundle."""
        read, written = map(self.source, sources), map(self.target, targets)
        pairs = list(zip((*sources, *targets), (*read, *written), strict=True))
        foreign = [code for code, own in pairs if own is None]
        if foreign:
            known = join_some(sorted({*self.sources, *self.targets}), 12)
            text = f" of {name}: {join_some(foreign)} is no language of its bundle; known: {known}"
            raise ConfigError(Message(Option("languages"), text))
        own = [code for _, code in pairs if code is not None]
        kept = tuple(dict.fromkeys(own[: len(sources)]))
        only = kept[0] if len(kept) == 1 else None
        default = self.default_source if self.default_source in kept else only
        return ModelLanguages(
            kept, tuple(dict.fromkeys(own[len(sources) :])), default, self.token_sides
        )

    @property
    def unknown(self) -> bool:
        """Whether the model takes any language, because its own are unknown."""
        return not self.sources and not self.targets

    def source(self, code: str) -> str | None:
        """The model's own form of a code that it reads, or None."""
        return match_code(code, self.sources) if self.sources else code

    def target(self, code: str) -> str | None:
        """The model's own form of a code that it writes, or None."""
        return match_code(code, self.targets) if self.targets else code

    def language_pair(self, source: str | None, target: str | None) -> LanguagePair:
        """The language tokens for a request; the only language that is allowed is the default."""
        return LanguagePair(self._code("source", source), self._code("target", target))

    def _code(self, side: str, code: str | None) -> str | None:
        known: tuple[str, ...] = getattr(self, f"{side}s")
        if side not in self.token_sides:
            return None
        if code is None:
            return known[0] if len(known) == 1 else None
        return match_code(code, known) if known else code


def _of_bundle(known: Languages) -> ModelLanguages | None:
    codes = tuple(known.ids)
    sources = codes if known.source_place else tuple(filter(None, [known.source]))
    targets = codes if known.target_place else tuple(filter(None, [known.target]))
    if not sources and not targets:
        return None
    only = sources[0] if len(sources) == 1 else None
    places = (("source", known.source_place), ("target", known.target_place))
    token_sides = frozenset(side for side, place in places if place)
    return ModelLanguages(sources, targets, known.source or only, token_sides)
