"""Drawn messages of programs, subtitles and lines of text."""

import json

from tests.drawn_documents.drawing import ALL, NAMED, PLAIN, Draw, Wrap

_FLAGS = {
    "": (*NAMED[:6], "%s", "%d", ":~", "@~", "[[~]]"),
    "c-format": ("%s", "%d", "%1$s", "%-5.2f", "%<PRIu64>", "%d%%", "%ld"),
    "python-format": ("%(~)s", "%(~)d", "%(~)r"),
    "python-brace-format": ("{~}", "{0}", "{~!r:>4}"),
    "php-format": ("%1$'010d", "%s", "%2$s"),
    "qt-format": ("%1", "%L2", "%n"),
    "java-printf-format": ("%,d", "%tY", "%s"),
    "csharp-format": ("{0,10:C}", "{1}"),
    "ruby-format": ("%{~}", "%<~>d"),
    "go-format": ("%v", "%+v", "%q"),
}
_HEADER = (
    "Project-Id-Version: a 1", "PO-Revision-Date: 2024-01-01 00:00+0000",
    "Last-Translator: A <a@b.c>", "Language-Team: A <a@b.c>", "Language: de", "MIME-Version: 1.0",
    "Content-Type: text/plain; charset=UTF-8", "Content-Transfer-Encoding: 8bit",
)  # fmt: skip
_INLINE = ("<b>{}</b>", '<a href="x">{}</a>', "<1>{}</1>", "<i>{}</i>")


def text(draw: Draw) -> str:
    """Lines."""
    return "\n".join(draw.some(lambda: draw.text(ALL), lambda: "", lambda: f"  {draw.text(ALL)}"))


def _message(draw: Draw, forms: tuple[str, ...]) -> str:
    wraps = [lambda text, form=form: form.replace("{}", text) for form in _INLINE]
    return draw.text(forms, wraps if draw.chance(0.3) else ())


def po(draw: Draw) -> str:
    """A catalog of messages."""
    rules = (
        "nplurals=2; plural=(n != 1);",
        "nplurals=1; plural=0;",
        "nplurals=3; plural=(n==1 ? 0 : n<5 ? 1 : 2);",
    )
    rule = draw.rng.choice(rules)
    lines = (*_HEADER, f"Plural-Forms: {rule}")
    head = 'msgid ""\nmsgstr ""\n' + "".join(f'"{line}\\n"\n' for line in lines)
    done = set[str]()

    def entry() -> str:
        flag = draw.rng.choice(list(_FLAGS))
        comment = f"#: {draw.kept('{}.c:1')}\n" if draw.chance(0.5) else ""
        context = f'msgctxt "{draw.kept()}"\n' if draw.chance(0.3) else ""
        flags = f"#, {flag}\n" if flag else ""
        message = _message(draw, _FLAGS[flag])
        end = "\\n" if draw.chance(0.1) else ""
        if draw.worded and "<" not in message and draw.chance(0.1):
            draw.drawn.literals.add("&")  # of an accelerator
            message = message.replace(" wo", " &wo", 1)
        quoted = message.replace('"', '\\"') + end
        if not draw.worded and message in done:
            return ""
        done.add(message)
        return f'{comment}{flags}{context}msgid "{quoted}"\nmsgstr ""\n'

    def plural() -> str:
        one, many = draw.sentence(()), f"%d {draw.sentence(())}"
        forms = "".join(f'msgstr[{n}] ""\n' for n in range(int(rule[9])))
        if one in done:
            return ""
        done.add(one)
        return f'#, c-format\nmsgid "{one}"\nmsgid_plural "{many}"\n{forms}'

    def translated() -> str:
        return draw.kept('msgid "{}"\nmsgstr "one"\n')

    def draft() -> str:
        return draw.kept('#, fuzzy\nmsgid "{} a"\nmsgstr "one"\n')

    def obsolete() -> str:
        return draw.kept('#~ msgid "{} b"\n#~ msgstr ""\n')

    made = draw.some(entry, entry, entry, plural, translated, draft, most=8)
    return (
        head + "\n" + "\n".join([*filter(None, made), *([obsolete()] if draw.chance(0.2) else [])])
    )


def json_strings(draw: Draw) -> str:
    """Texts in objects and lists."""
    forms = (*NAMED, *PLAIN, "$t(~)", ":~", "__~__")

    def value() -> object:
        kind = draw.rng.random()
        if kind < 0.15:
            return {draw.kept(): value() for _ in range(2)}
        if kind < 0.25:
            return [value(), draw.rng.randint(0, 9), None, True]
        message = _message(draw, forms)
        if draw.chance(0.15):
            draw.drawn.same = False  # where there are tags, a line break may be a space
            return f"{message}\n{draw.text(forms)}"
        return message

    content = {draw.kept(): value() for _ in range(draw.rng.randint(2, 6))}
    return json.dumps(content, ensure_ascii=draw.chance(0.3), indent=draw.rng.choice((None, 2, 4)))


_CUES = ("<i>{}</i>", "<b>{}</b>", '<font color="red">{}</font>')


def _cue(draw: Draw, vtt: bool) -> str:
    forms = tuple(form for form in ALL if "{" not in form)
    wraps = [lambda text, form=form: form.replace("{}", text) for form in _CUES[: 2 if vtt else 3]]

    def line() -> str:
        return draw.text(forms, wraps)

    kind = draw.rng.random()
    if kind < 0.3:
        draw.drawn.same = False  # its lines are made about as long as each other
        return f"{line()}\n{line()}"
    if kind < 0.45:
        return f"- {line()}\n- {line()}"
    if kind < 0.55:
        return f"[{draw.sentence(())}]\n{line()}"
    if kind < 0.6:
        label = f"{draw.name('ke').upper()}: "
        draw.drawn.kept.append(label)
        heard = f"[{draw.sentence((), (), False)}]"
        return draw.rng.choice(
            (f"{label}{line()}", f"{heard} {line()}", f"{label}{line()} {heard}")
        )
    if kind < 0.65 and vtt:
        return f"<v {draw.kept()}>{line()}</v>"
    if kind < 0.7:
        return f"\N{EIGHTH NOTE} {line()} \N{EIGHTH NOTE}"
    if kind < 0.75 and not vtt:
        return f"{{\\an8}}{line()}"
    return line()


def srt(draw: Draw) -> str:
    """Subtitles of SubRip."""
    cues = list[str]()
    for number in range(1, draw.rng.randint(3, 7)):
        times = f"00:00:{number:02},000 --> 00:00:{number:02},900"
        cues.append(f"{number}\n{times}\n{_cue(draw, False)}\n")
    return "\n".join(cues)


def vtt(draw: Draw) -> str:
    """Subtitles of WebVTT, with styles and notes."""
    blocks = [f"WEBVTT{draw.kept(' - {} one') if draw.chance(0.3) else ''}\n"]
    if draw.chance(0.3):
        blocks.append(draw.kept("STYLE\n::cue(.{}) { color: red }\n"))
    for number in range(1, draw.rng.randint(3, 7)):
        if draw.chance(0.2):
            blocks.append(draw.kept("NOTE {} one\ntwo\n"))
        name = f"{draw.kept()}\n" if draw.chance(0.3) else ""
        setting = " align:start position:10%" if draw.chance(0.3) else ""
        times = f"00:{number:02}.000 --> 00:{number:02}.900{setting}"
        blocks.append(f"{name}{times}\n{_cue(draw, True)}\n")
    return "\n".join(blocks)


def arb(draw: Draw) -> str:
    """Texts of Flutter: https://github.com/google/app-resource-bundle/wiki."""
    content: dict[str, object] = {"@@locale": draw.kept()}
    for _ in range(draw.rng.randint(2, 6)):
        key = draw.kept()
        icu = f"{{n, plural, =1{{{draw.kept()} one}} other{{{{n}} {draw.kept()}}}}}"
        whole = draw.chance(0.2)
        content[key] = icu if whole else _message(draw, ("{~}", "{~}", "https://example.com/~"))
        if draw.chance(0.6):
            about = {"description": draw.kept("{} one"), "placeholders": {"x": {"type": "int"}}}
            content[f"@{key}"] = about
    return json.dumps(content, ensure_ascii=draw.chance(0.3), indent=draw.rng.choice((2, 4)))


def strings(draw: Draw) -> str:
    """Resources of Android: https://developer.android.com/guide/topics/resources."""
    forms = (*PLAIN, "%1$d/%2$d", "https://example.com/~")
    wraps: list[Wrap] = [
        lambda text: f"<b>{text}</b>",
        lambda text: f'<a href="{draw.kept()}">{text}</a>' if "<a" not in text else text,
        lambda text: f'{text} <xliff:g id="{draw.kept()}">%1$s</xliff:g>',
    ]

    def text() -> str:
        words = draw.text(forms, wraps if draw.chance(0.4) else ())
        if draw.chance(0.15):
            return f"{words}\\n{draw.text(forms)}"
        return f"{words} 7\\'" if draw.chance(0.15) else words

    def string() -> str:
        return f'    <string name="{draw.kept()}">{text()}</string>'

    def fixed() -> str:
        return "    " + draw.kept(draw.rng.choice((
            '<string name="a" translatable="false">{} one</string>', "<!-- {} one -->",
            '<string name="b"><![CDATA[{} <b>]]></string>', '<string name="c">@string/{}</string>',
            '<string-array name="d" translatable="false"><item>{} x</item></string-array>',
        )))  # fmt: skip

    def plurals() -> str:
        items = "".join(
            f'<item quantity="{one}">{draw.sentence(forms)}</item>' for one in ("one", "other")
        )
        return f'    <plurals name="{draw.kept()}">{items}</plurals>'

    def array() -> str:
        items = "".join(f"<item>{text()}</item>" for _ in range(2))
        return f'    <string-array name="{draw.kept()}">{items}</string-array>'

    body = "\n".join(draw.some(string, string, fixed, plurals, array))
    space = ' xmlns:xliff="urn:oasis:names:tc:xliff:document:1.2"'
    return f"<resources{space}>\n{body}\n</resources>\n"
