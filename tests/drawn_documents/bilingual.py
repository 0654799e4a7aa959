"""Drawn files of texts with their translations: XLIFF 1.2 and 2, and Qt's TS.

Texts that are to be translated have words with ``wo``, and others have words with ``ke`` alone.
"""

from html import escape

from tests.drawn_documents.drawing import NAMED, PLAIN, Draw, Wrap

_HTML = ("<b>{}</b>", '<a href="x">{}</a>', "<i>{}</i>")
_OF_QT = ("%1", "%L2", "%3", "%%")


def xliff(draw: Draw) -> str:
    """A file of XLIFF, of either version, in some with a prefix of the namespace."""
    return (_Xliff1 if draw.chance(0.55) else _Xliff2)(draw).document()


class _Xliff:
    """What both versions have; ``p`` is the prefix of the names of elements."""

    target_of_copy = ""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.p = "x:" if draw.chance(0.2) else ""
        self.number = 0

    def next_id(self) -> str:
        self.number += 1
        return f"c{self.number}"

    def kept_words(self) -> str:
        return f"{self.draw.name('ke')} {self.draw.name('ke')}"

    def source(self, wraps: list[Wrap]) -> str:
        """The content of a source: with codes, of HTML that is escaped, or in CDATA."""
        draw = self.draw
        kind = draw.rng.random()
        if kind < 0.15:
            return escape(draw.text((*NAMED, *PLAIN), _html_wraps()), quote=False)
        if kind < 0.25:
            return f"<![CDATA[{draw.text(PLAIN, _html_wraps())}]]>"
        if kind < 0.3:
            return f"{draw.text(PLAIN)}\n   {draw.text(PLAIN)}"
        if kind < 0.34:
            return f"{draw.sentence(PLAIN)} &amp; {draw.sentence(PLAIN)} 1 &lt; 2"
        if kind < 0.38 and not draw.worded:
            return f'<{self.p}{self.code} id="1"/>'
        return draw.text((*NAMED, *PLAIN), wraps if draw.chance(0.8) else ())

    code = "x"

    def target(self, source: str, before: str = "\n        ") -> str:
        """A target that has no translation, with what is before it."""
        p, kind = self.p, self.draw.rng.random()
        if kind < 0.4 or not self.draw.worded:
            return ""
        if kind < 0.6:
            return f"{before}<{p}target/>"
        if kind < 0.8:
            return f'{before}<{p}target xml:lang="en"></{p}target>'
        return f"{before}<{p}target{self.target_of_copy}>{source}</{p}target>"

    def pair(self, text: str, begin: str, end: str) -> str:
        """A text between two codes with one id of their own, which ``~`` stands for."""
        one = self.next_id()
        return f"{begin.replace('~', one)}{text}{end.replace('~', one)}"


class _Xliff1(_Xliff):
    """XLIFF 1.2: https://docs.oasis-open.org/xliff/v1.2/os/xliff-core.html."""

    target_of_copy = ' state="new"'

    def document(self) -> str:
        draw, p = self.draw, self.p
        name = f"xmlns{':x' if p else ''}"
        body = "\n".join(draw.some(
            self.unit, self.unit, self.unit, self.segmented, self.done, self.approved,
            self.fixed, self.group, self.comment, self.message,
        ))  # fmt: skip
        space = ' xml:space="preserve"' if draw.chance(0.15) else ""
        above = "<!-- one -->\n" if draw.chance(0.2) else ""
        return (
            f'<?xml version="1.0" encoding="UTF-8"?>\n{above}<{p}xliff version="1.2" '
            f'{name}="urn:oasis:names:tc:xliff:document:1.2">\n  <{p}file original="a" '
            f'source-language="de" target-language="en" datatype="plaintext"{space}>\n'
            f"  <{p}body>\n{body}\n  </{p}body>\n  </{p}file>\n</{p}xliff>\n"
        )

    def wraps(self) -> list[Wrap]:
        p, draw, pair = self.p, self.draw, self.pair
        return [
            lambda text: pair(text, f'<{p}g id="~">', f"</{p}g>"),
            lambda text: pair(text, f'<{p}bpt id="~">&lt;b&gt;</{p}bpt>',
                              f'<{p}ept id="~">&lt;/b&gt;</{p}ept>'),
            lambda text: pair(text, f'<{p}bpt id="1~" rid="~">[b]</{p}bpt>',
                              f'<{p}ept id="2~" rid="~">[/b]</{p}ept>'),
            lambda text: pair(text, f'<{p}bx id="~"/>', f'<{p}ex id="~"/>'),
            lambda text: pair(text, f'<{p}x id="START_~" ctype="x-b" equiv-text="&lt;b&gt;"/>',
                              f'<{p}x id="CLOSE_~" ctype="x-b" equiv-text="&lt;/b&gt;"/>'),
            lambda text: f'{text} <{p}x id="{self.next_id()}" equiv-text="{{{{ke}}}}"/>',
            lambda text: f'{text} <{p}x id="{self.next_id()}"/>',
            lambda text: f'<{p}x id="{self.next_id()}" ctype="lb"/>{text}',
            lambda text: f'{text} <{p}ph id="{self.next_id()}">{{{draw.name("ke")}}}</{p}ph>',
            lambda text: f'{text} <{p}it id="{self.next_id()}" pos="open">&lt;u></{p}it>',
            lambda text: f'{text} <{p}mrk mtype="protected">{draw.name("ke")}</{p}mrk>',
            lambda text: f"{text} <!-- {draw.name('ke')} -->",
            lambda text: pair(text, f'<{p}mrk mtype="x-term" mid="~">', f"</{p}mrk>"),
        ]  # fmt: skip

    def unit(self) -> str:
        p, draw = self.p, self.draw
        source = self.source(self.wraps())
        space = ' xml:space="preserve"' if draw.chance(0.2) else ""
        note = f"\n        <{p}note>{draw.name('ke')} one</{p}note>" if draw.chance(0.3) else ""
        other = ""
        if draw.chance(0.15):
            words = self.kept_words()
            other = (
                f"\n        <{p}alt-trans><{p}source>{words}</{p}source>"
                f"<{p}target>{words}</{p}target></{p}alt-trans>"
            )
        return (
            f'      <{p}trans-unit id="{draw.name("ke")}"{space}>\n        '
            f"<{p}source>{source}</{p}source>{self.target(source)}{note}{other}\n"
            f"      </{p}trans-unit>"
        )

    def segmented(self) -> str:
        p, draw = self.p, self.draw
        wraps = self.wraps()[:-1]  # a part that is marked is in no segment
        parts = [draw.sentence(PLAIN, wraps) for _ in range(draw.rng.randint(1, 3))]
        marked = " ".join(
            f'<{p}mrk mtype="seg" mid="{number}">{part}</{p}mrk>'
            for number, part in enumerate(parts)
        )
        empty = "".join(f'<{p}mrk mtype="seg" mid="{number}"/>' for number in range(len(parts)))
        targets = ("", f"<{p}target/>", f"<{p}target>{empty}</{p}target>")
        target = draw.rng.choice(targets if draw.worded else targets[:1])
        return (
            f'      <{p}trans-unit id="{draw.name("ke")}"><{p}source>{" ".join(parts)}'
            f"</{p}source><{p}seg-source>{marked}</{p}seg-source>{target}</{p}trans-unit>"
        )

    def done(self) -> str:
        p, draw = self.p, self.draw
        state = draw.rng.choice(("", ' state="translated"', ' state="final"', ' state="new"',
                                 ' state="needs-review-translation"'))  # fmt: skip
        return (
            f'      <{p}trans-unit id="{draw.name("ke")}"><{p}source>{self.kept_words()}'
            f"</{p}source><{p}target{state}>{self.kept_words()}</{p}target></{p}trans-unit>"
        )

    def approved(self) -> str:
        """A unit of which a person said that it is done, though its target is empty."""
        p, draw = self.p, self.draw
        approved, state = draw.rng.choice(((' approved="yes"', ""), ("", ' state="final"')))
        return (
            f'      <{p}trans-unit id="{draw.name("ke")}"{approved}><{p}source>'
            f"{self.kept_words()}</{p}source><{p}target{state}/></{p}trans-unit>"
        )

    def fixed(self) -> str:
        p = self.p
        return (
            f'      <{p}trans-unit id="{self.draw.name("ke")}" translate="no"><{p}source>'
            f"{self.kept_words()}</{p}source></{p}trans-unit>"
        )

    def group(self) -> str:
        p = self.p
        if self.draw.chance(0.4):
            return f'      <{p}group translate="no">\n{self.done()}\n{self.fixed()}\n</{p}group>'
        inner = self.unit() if self.draw.chance(0.7) else self.group()
        return f'      <{p}group id="{self.draw.name("ke")}">\n{inner}\n      </{p}group>'

    def message(self) -> str:
        """A message of ICU, whose forms are left to a translator."""
        p, draw = self.p, self.draw
        shown = draw.rng.choice(("#", f'<{p}x id="INTERPOLATION" equiv-text="{{{{n}}}}"/>'))
        words = f"{{n, plural, =1 {{{self.kept_words()}}} other {{{shown} {draw.name('ke')}}}}}"
        return (
            f'      <{p}trans-unit id="{draw.name("ke")}"><{p}source>{words}</{p}source>'
            f"</{p}trans-unit>"
        )

    def comment(self) -> str:
        return f"      <!-- {self.draw.name('ke')} <source> -->"


class _Xliff2(_Xliff):
    """XLIFF 2: https://docs.oasis-open.org/xliff/xliff-core/v2.1/xliff-core-v2.1.html."""

    code = "ph"

    def document(self) -> str:
        draw, p = self.draw, self.p
        name = f"xmlns{':x' if p else ''}"
        version = draw.rng.choice(("2.0", "2.1"))
        body = "\n".join(
            draw.some(
                self.unit, self.unit, self.unit, self.done, self.final, self.fixed, self.group
            )
        )
        space = ' xml:space="preserve"' if draw.chance(0.15) else ""
        return (
            f'<{p}xliff version="{version}" {name}="urn:oasis:names:tc:xliff:document:2.0" '
            f'srcLang="de" trgLang="en">\n  <{p}file id="f1"{space}>\n{body}\n'
            f"  </{p}file>\n</{p}xliff>\n"
        )

    def wraps(self) -> list[Wrap]:
        p, draw, pair = self.p, self.draw, self.pair
        return [
            lambda text: pair(text, f'<{p}pc id="~" dataRefStart="d1" dataRefEnd="d2">',
                              f"</{p}pc>"),
            lambda text: pair(text, f'<{p}sc id="~"/>', f'<{p}ec startRef="~"/>'),
            lambda text: f'{text} <{p}ph id="{self.next_id()}" equiv="{{{draw.name("ke")}}}"/>',
            lambda text: f'{text} <{p}ph id="{self.next_id()}" dataRef="d1" disp="ke"/>',
            lambda text: f'<{p}ph id="{self.next_id()}" subType="xlf:lb" type="fmt"/>{text}',
            lambda text: (
                f'{text} <{p}mrk id="{self.next_id()}" translate="no">{draw.name("ke")}</{p}mrk>'
            ),
            lambda text: pair(text, f'<{p}mrk id="~" type="term">', f"</{p}mrk>"),
            lambda text: pair(text, f'<{p}sm id="~" type="comment" value="ke"/>',
                              f'<{p}em startRef="~"/>'),
            lambda text: f'{text} <{p}ec id="{self.next_id()}" isolated="yes"/>',
            lambda text: f'{text}<{p}cp hex="0007"/>',
        ]  # fmt: skip

    def segment(self) -> str:
        p, draw = self.p, self.draw
        source = self.source(self.wraps())
        state = draw.rng.choice(("", ' state="initial"', ' id="s1"'))
        target = self.target(source, "")
        if target.endswith(f">{source}</{p}target>") and "initial" not in state:
            state = ' state="initial"'
        return (
            f"      <{p}segment{state}>\n        <{p}source>{source}</{p}source>{target}\n"
            f"      </{p}segment>"
        )

    def unit(self) -> str:
        p, draw = self.p, self.draw
        notes = f"<{p}notes><{p}note>{draw.name('ke')}</{p}note></{p}notes>"
        data = f'<{p}originalData><{p}data id="d1">{draw.name("ke")}</{p}data></{p}originalData>'
        segments = [self.segment() for _ in range(draw.rng.choice((1, 1, 2)))]
        between = f"\n      <{p}ignorable><{p}source> </{p}source></{p}ignorable>\n"
        space = ' xml:space="preserve"' if draw.chance(0.2) else ""
        return (
            f'    <{p}unit id="{draw.name("ke")}"{space}>'
            f"{notes if draw.chance(0.3) else ''}{data if draw.chance(0.3) else ''}\n"
            f"{(between if draw.chance(0.5) else chr(10)).join(segments)}\n    </{p}unit>"
        )

    def done(self) -> str:
        p, draw = self.p, self.draw
        state = draw.rng.choice(("", *(f' state="{name}"' for name in (
            "initial", "translated", "reviewed", "final",
        ))))  # fmt: skip
        return (
            f'    <{p}unit id="{draw.name("ke")}"><{p}segment{state}><{p}source>'
            f"{self.kept_words()}</{p}source><{p}target>{self.kept_words()}</{p}target>"
            f"</{p}segment></{p}unit>"
        )

    def final(self) -> str:
        p, draw = self.p, self.draw
        state = draw.rng.choice(("translated", "reviewed", "final"))
        target = draw.rng.choice((f"<{p}target/>", ""))
        return (
            f'    <{p}unit id="{draw.name("ke")}"><{p}segment state="{state}"><{p}source>'
            f"{self.kept_words()}</{p}source>{target}</{p}segment></{p}unit>"
        )

    def fixed(self) -> str:
        p = self.p
        return (
            f'    <{p}unit id="{self.draw.name("ke")}" translate="no"><{p}segment><{p}source>'
            f"{self.kept_words()}</{p}source></{p}segment></{p}unit>"
        )

    def group(self) -> str:
        p = self.p
        inner = self.unit() if self.draw.chance(0.7) else self.group()
        fixed = f'    <{p}group id="a" translate="no">\n{self.done()}\n{self.fixed()}\n</{p}group>'
        group = f'    <{p}group id="{self.draw.name("ke")}">\n{inner}\n    </{p}group>'
        return fixed if self.draw.chance(0.3) else group


def ts(draw: Draw) -> str:
    """A file of Qt Linguist: https://doc.qt.io/qt-6/linguist-ts-file-format.html."""
    return _Ts(draw).document()


class _Ts:
    """Draws the messages of a file."""

    unfinished = '<translation type="unfinished"></translation>'

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.count = draw.rng.choice((1, 2, 3))  # of the forms of a plural

    def document(self) -> str:
        draw = self.draw
        kind = draw.rng.choice(("<!DOCTYPE TS>\n", "<!DOCTYPE TS []>\n", ""))
        body = "\n".join(draw.some(self.context, least=1, most=3))
        return (
            f'<?xml version="1.0" encoding="utf-8"?>\n{kind}<TS version="2.1" '
            f'language="en_US" sourcelanguage="de_DE">\n{body}\n</TS>\n'
        )

    def context(self) -> str:
        messages = self.draw.some(
            self.new, self.new, self.new, self.plural, self.finished, self.draft, self.gone,
            self.forms, self.byte, most=4,
        )  # fmt: skip
        name = self.draw.name("ke")
        return f"<context>\n    <name>{name}</name>\n{chr(10).join(messages)}\n</context>"

    def message(self, source: str, target: str, attributes: str = "") -> str:
        """A message with what may be before and after its source."""
        draw = self.draw
        location = f'<location filename="{draw.name("ke")}.cpp" line="1"/>\n        '
        comment = f"\n        <comment>{draw.name('ke')} one</comment>"
        extra = f"\n        <extracomment>{draw.name('ke')} one</extracomment>"
        return (
            f"    <message{attributes}>\n        {location if draw.chance(0.4) else ''}"
            f"<source>{source}</source>{comment if draw.chance(0.3) else ''}"
            f"{extra if draw.chance(0.3) else ''}\n        {target}\n    </message>"
        )

    def text(self) -> str:
        draw = self.draw
        wraps = _html_wraps() if draw.chance(0.3) else ()
        text = escape(draw.text(_OF_QT, wraps), quote=draw.chance(0.5))
        if draw.worded and "&lt;" not in text and draw.chance(0.1):
            text = text.replace(" wo", " &amp;wo", 1)
        return text.replace(" ", "\n", 1) if draw.chance(0.1) else text

    def words(self) -> str:
        return f"{self.draw.name('ke')} {self.draw.name('ke')}"

    def new(self) -> str:
        forms = (self.unfinished, '<translation type="unfinished"/>', "", "<translation/>")
        count = len(forms) if self.draw.worded else 2
        return self.message(self.text(), self.draw.rng.choice(forms[:count]))

    def plural(self) -> str:
        shown = self.draw.rng.choice(("%n ", "%Ln ", "%1: %n "))
        form = self.draw.rng.choice(("<numerusform></numerusform>", "<numerusform/>"))
        forms = f"\n            {form}" * self.count
        target = f'<translation type="unfinished">{forms}\n        </translation>'
        source = f"{shown}{self.draw.sentence(())}"
        return self.message(source, target, ' numerus="yes"')

    def finished(self) -> str:
        return self.message(self.words(), f"<translation>{self.words()}</translation>")

    def draft(self) -> str:
        target = f'<translation type="unfinished">{self.words()}</translation>'
        return self.message(self.words(), target)

    def gone(self) -> str:
        kind = self.draw.rng.choice(("vanished", "obsolete"))
        words = self.words() if self.draw.chance(0.7) else ""
        return self.message(self.words(), f'<translation type="{kind}">{words}</translation>')

    def forms(self) -> str:
        """A plural of which some forms are there."""
        count = self.draw.rng.randint(1, self.count)
        forms = f"<numerusform>%n {self.words()}</numerusform>" * count
        forms += "<numerusform></numerusform>" * (self.count - count)
        target = f'<translation type="unfinished">{forms}</translation>'
        return self.message(f"%n {self.words()}", target, ' numerus="yes"')

    def byte(self) -> str:
        """A message with a character that XML cannot have."""
        return self.message(f'{self.words()}<byte value="x7"/>', self.unfinished)


def _html_wraps() -> list[Wrap]:
    def wrap(form: str) -> Wrap:
        return lambda text: form.replace("{}", text)

    return [wrap(form) for form in _HTML]
