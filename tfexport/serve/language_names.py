"""English names of languages, which some protocols want beside the codes."""

_NAMES = """
af Afrikaans|am Amharic|ar Arabic|as Assamese|ast Asturian|az Azerbaijani|ba Bashkir|be Belarusian
bg Bulgarian|bn Bengali|bo Tibetan|br Breton|bs Bosnian|ca Catalan|ceb Cebuano|co Corsican|cs Czech
cy Welsh|da Danish|de German|el Greek|en English|eo Esperanto|es Spanish|et Estonian|eu Basque
fa Persian|ff Fulah|fi Finnish|fo Faroese|fr French|fy Western Frisian|ga Irish|gd Scottish Gaelic
gl Galician|gu Gujarati|ha Hausa|he Hebrew|hi Hindi|hr Croatian|ht Haitian Creole|hu Hungarian
hy Armenian|id Indonesian|ig Igbo|ilo Iloko|is Icelandic|it Italian|ja Japanese|jv Javanese
ka Georgian|kab Kabyle|kk Kazakh|km Khmer|kn Kannada|ko Korean|ku Kurdish|ky Kyrgyz|la Latin
lb Luxembourgish|lg Ganda|ln Lingala|lo Lao|lt Lithuanian|lv Latvian|mg Malagasy|mi Maori
mk Macedonian|ml Malayalam|mn Mongolian|mr Marathi|ms Malay|mt Maltese|my Burmese|nb Norwegian
ne Nepali|nl Dutch|nn Norwegian Nynorsk|no Norwegian|ny Chichewa|oc Occitan|om Oromo|or Odia
pa Punjabi|pl Polish|ps Pashto|pt Portuguese|qu Quechua|ro Romanian|ru Russian|rw Kinyarwanda
sa Sanskrit|sd Sindhi|si Sinhala|sk Slovak|sl Slovenian|sm Samoan|sn Shona|so Somali|sq Albanian
sr Serbian|ss Swati|st Southern Sotho|su Sundanese|sv Swedish|sw Swahili|ta Tamil|te Telugu
tg Tajik|th Thai|ti Tigrinya|tk Turkmen|tl Tagalog|tn Tswana|tr Turkish|ts Tsonga|tt Tatar
ug Uyghur|uk Ukrainian|und Undetermined|ur Urdu|uz Uzbek|vi Vietnamese|wo Wolof|xh Xhosa|yi Yiddish
yo Yoruba|yue Cantonese|zh Chinese|zu Zulu
"""
_BY_CODE = dict(
    entry.split(" ", 1) for line in _NAMES.strip().splitlines() for entry in line.split("|")
)


def base_of(code: str) -> str:
    """A code without region and script, in lower case: ``de`` of ``de_DE`` and ``DE-at``."""
    return code.lower().replace("_", "-").partition("-")[0]


def language_name(code: str) -> str:
    """The English name of a language; its code, if it has none here."""
    return _BY_CODE.get(base_of(code), code)
