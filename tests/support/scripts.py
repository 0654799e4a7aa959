"""Texts of thirty scripts, composed and decomposed, drawn with a seed."""

import random
import unicodedata
from typing import Literal

# Letters of a script, and marks that its words have.
SCRIPTS = {
    "Latin": ("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", ""),
    "Western": ("äöüßéèêëàâîïôùûçñåøæœÄÖÜÉÀÇÑÅØ", ""),
    "Central": ("ąćęłńóśźżčďěňřšťůžőűășțđğıİ", ""),
    "Vietnamese": ("aăâeêioôơuưyđAĂÂEÊIOÔƠUƯYĐtnhg", "\u0300\u0301\u0303\u0309\u0323"),
    "Greek": ("αβγδεζηθικλμνξοπρσςτυφχψωΑΒΓΔΣΩ", "\u0301\u0308"),
    "Cyrillic": ("абвгдежзийклмнопрстуфхцчшщъыьэюяїєґўЁЙ", "\u0301"),
    "Armenian": ("աբգդեզէըթժիլխծկհձղճմյնշոչպջռսվտրցւփքօֆ", ""),
    "Georgian": ("აბგდევზთიკლმნოპჟრსტუფქღყშჩცძწჭხჯჰ", ""),
    "Hebrew": ("אבגדהוזחטיכלמנסעפצקרשתםןףץך", "\u05b0\u05b4\u05b7\u05bc"),
    "Arabic": ("ابتثجحخدذرزسشصضطظعغفقكلمنهويآأإؤئةى", "\u064b\u064e\u064f\u0650\u0651"),
    "Persian": ("پچژگکیهابتن", "\u200c"),
    "Urdu": ("ٹڈڑںےھگچپ", ""),
    "Syriac": ("ܐܒܓܕܗܘܙܚܛܝܟܠܡܢ", "\u0730\u0733"),
    "Devanagari": ("अआइईउऊएकखगघचछजझटठडढणतथदधनपफबभमयरलवशषसहक़ख़ग़", "ािीुूेैोौ्ंँ"),
    "Bengali": ("অআইঈউকখগঘচছজটঠডঢণতথদধনপফবভমযরলশষসহড়ঢ়য়", "\u09be\u09bf\u09c0\u09c1\u09cb\u09cd"),
    "Gurmukhi": ("ਅਆਇਕਖਗਘਚਛਜਟਠਡਢਣਤਥਦਧਨਪਫਬਭਮਯਰਲਵਸ਼ਸਹ", "\u0a3e\u0a3f\u0a40\u0a41\u0a70"),
    "Gujarati": ("અઆઇકખગઘચછજટઠડઢણતથદધનપફબભમયરલવશસહ", "\u0abe\u0abf\u0ac0\u0ac1\u0acd"),
    "Tamil": ("அஆஇஈஉஎஏகஙசஞடணதநபமயரலவழளறன", "\u0bbe\u0bbf\u0bc0\u0bca\u0bcb\u0bcd"),
    "Telugu": ("అఆఇఉఎకఖగఘచజటడణతదనపబమయరలవశసహ", "\u0c3e\u0c3f\u0c40\u0c41\u0c4d\u0c48"),
    "Kannada": ("ಅಆಇಉಎಕಖಗಚಜಟಡಣತದನಪಬಮಯರಲವಶಸಹ", "\u0cbe\u0cbf\u0cc0\u0cc1\u0cca\u0ccd"),
    "Malayalam": ("അആഇഉഎകഖഗചജടഡണതദനപബമയരലവശസഹ", "\u0d3e\u0d3f\u0d40\u0d41\u0d4a\u0d4d"),
    "Sinhala": ("අආඇඉඋඑකගචජටඩණතදනපබමයරලවසහ", "\u0dcf\u0dd2\u0dd4\u0ddc\u0dca"),
    "Thai": ("กขคงจชซญดตถทธนบปผพฟมยรลวสหอฮเแโใไ", "ะาิีึืุู่้็์ำ"),
    "Lao": ("ກຂຄງຈຊຍດຕຖທນບປຜຝພຟມຢຣລວສຫອຮເແ", "\u0eb0\u0eb4\u0eb5\u0ec8\u0ec9\u0eb3"),
    "Tibetan": ("ཀཁགངཅཆཇཉཏཐདནཔཕབམཙཚཛཝཞཟའཡརལཤསཧཨ", "\u0f72\u0f74\u0f7a\u0f7c\u0f0b"),
    "Burmese": ("ကခဂငစဆဇညတထဒဓနပဖဗဘမယရလဝသဟအ", "\u102b\u102d\u102f\u1031\u1037\u103a"),
    "Khmer": ("កខគឃងចឆជញតថទធនបផពភមយរលវសហអ", "\u17b6\u17b7\u17bb\u17c1\u17d2"),
    "Ethiopic": ("ሀለሐመሠረሰሸቀበተኀነአከወዐዘየደገጠጸፈፐ", ""),
    "Korean": ("가각간갈감강개객거건겨고과교구국귀그금기나남내너노누다대도되라러로리마모무미", ""),
    "Japanese": ("あいうえおかがきぎくぐけげこごさざしはばぱひびぴアイカガパピ日本語", ""),
    "Half-width Japanese": ("ｱｲｳｴｵｶｷｸｹｺｻｼｽｾｿﾀﾁﾂﾊﾋﾌﾍﾎ", "\uff9e\uff9f"),
    "Full-width Latin": ("ＡＢＣＤＥＦＧａｂｃｄｅｆｇ１２３４５６", ""),
    "Chinese": ("的一是在不了有和人这中大为上个国我以要他時來們說會對發學", ""),
    "Cherokee": ("ᎠᎡᎢᎣᎤᎥᎦᎧᎨᎩᎪᎫᎬᎭᎮᎯᎰᎱᎲ", ""),
}  # fmt: skip
_FORMS: tuple[Literal["NFC", "NFD"], ...] = ("NFC", "NFD")
_ENDS = (".", "?", "!", ",", " …", "。", "”", " 12", " 3.5 %", ":", "")


def script_texts(count: int, seed: int = 3) -> list[str]:
    """Texts of one to seven words, each in one script or with words of another."""
    draw, texts = random.Random(seed), list[str]()
    names = [*SCRIPTS]
    while len(texts) < count:
        main = names[len(texts) % len(names)]
        words = [
            _word(draw, main if draw.random() < 0.85 else draw.choice(names))
            for _ in range(draw.randint(1, 7))
        ]
        text = draw.choice([" ", " ", " ", "  "]).join(words) + draw.choice(_ENDS)
        texts.append(unicodedata.normalize(draw.choice(_FORMS), text))
    return texts


def _word(draw: random.Random, script: str) -> str:
    letters, marks = SCRIPTS[script]
    drawn = (
        draw.choice(letters) + (draw.choice(marks) if marks and draw.random() < 0.4 else "")
        for _ in range(draw.randint(1, 8))
    )
    return "".join(drawn)
