"""Drawn pages: HTML, XML and Markdown."""

import re

from tests.drawn_documents.drawing import ALL, NAMED, PLAIN, Draw, Wrap

_OF_PAGES = (*ALL, "{{{ ~ }}}", "{!! ~ !!}", "<%= ~ %>", "[% ~ %]", "{{ ~ | upper }}")
_STATEMENTS = (
    ("{% if {} %}", "{% endif %}"), ("{{#if {}}}", "{{/if}}"), ("<% if {} %>", "<% end %>"),
    ("{{ if .{} }}", "{{ end }}"), ("{{< {} >}}", "{{< /x >}}"),
    ("<?php if ({}): ?>", "<?php endif; ?>"),
)  # fmt: skip


def html(draw: Draw) -> str:
    """A page or a part of one."""
    return _Html(draw).document()


class _Html:
    """Draws the elements of a page."""

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self._wraps = _html_wraps(draw)

    def document(self) -> str:
        draw = self._draw
        made = draw.some(
            self.paragraph, self.paragraph, self.heading, self.items, self.table, self.program,
            self.program, self.lines, self.breaks, self.branches, self.menu, self.entities,
            self.ampersand,
        )  # fmt: skip
        body = draw.rng.choice(("\n", "\n\n")).join(made)
        if draw.chance(0.3):
            head = f'<meta name="x" content="{draw.kept()}"><title>{self.sentence()}</title>'
            start = f'<!DOCTYPE html>\n<html lang="de">\n<head>{head}</head>\n'
            return f"{start}<body>\n{body}\n</body>\n</html>\n"
        return f"{body}\n"

    def text(self) -> str:
        return self._draw.text(_OF_PAGES, self._wraps)

    def sentence(self, end: bool = True) -> str:
        return self._draw.sentence(_OF_PAGES, (), end)

    def paragraph(self) -> str:
        attribute = self._draw.kept(' class="{}"') if self._draw.chance(0.3) else ""
        if self._draw.chance(0.2):
            self._draw.drawn.same = False  # white space is written as a browser shows it
            return f"<p{attribute}>\n  {self.text()}\n   {self.text()}\n</p>"
        return f"<p{attribute}>{self.text()}</p>"

    def heading(self) -> str:
        return f"<h2 id={self._draw.kept()}>{self._draw.sentence(_OF_PAGES, self._wraps)}</h2>"

    def items(self) -> str:
        end = "</li>" if self._draw.chance(0.7) else ""
        return "<ul>\n" + "\n".join(f"<li>{self.text()}{end}" for _ in range(3)) + "\n</ul>"

    def table(self) -> str:
        cells = "".join(f"<td>{self.text()}</td>" for _ in range(2))
        head = f"<tr><th>{self._draw.sentence(())}</th><th></th></tr>"
        return f"<table>{head}<tr>{cells}</tr></table>"

    def program(self) -> str:
        form = self._draw.rng.choice((
            "<script>if (a < b) { say('{}') }</script>", "<style>.{} > a { color: red }</style>",
            "<pre><code>{} &lt; b</code></pre>", "<svg><title>{}</title><path d='M0'/></svg>",
            "<math><mi>{}</mi></math>", "<!-- {} <b> -->", '<p translate="no">{} one</p>',
            "<textarea>{}</textarea>", '<p class="a notranslate">{}</p>', '<img alt="{} one">',
        ))  # fmt: skip
        return self._draw.kept(form)

    def lines(self) -> str:
        return f"<pre>{self.sentence()}\n  {self.sentence()}\n</pre>"

    def breaks(self) -> str:
        return f"<div>{self.text()}<br>{self.text()}<hr>{self.text()}</div>"

    def branches(self) -> str:
        begin, end = self._draw.rng.choice(_STATEMENTS)
        return f"<p>{self._draw.kept(begin)}{self.text()}{end}</p>"

    def menu(self) -> str:
        draw = self._draw
        links = (f'<a href="{draw.kept()}">{draw.sentence(())}</a>' for _ in range(3))
        return f"<nav>{''.join(links)}</nav>"

    def entities(self) -> str:
        if not self._draw.worded:
            return "<hr>"
        self._draw.drawn.same = False  # they are written as characters
        return f"<p>{self.sentence()} &copy;&nbsp;&auml; {self.sentence()}</p>"

    def ampersand(self) -> str:
        return f"<p>{self.sentence(end=False)} &amp; {self.sentence()} 1 &lt; 2</p>"


def _html_wraps(draw: Draw) -> list[Wrap]:
    return [
        lambda text: f"<b>{text}</b>",
        lambda text: (
            f'<a href="{draw.kept("{}.html?a=1&amp;b=2")}">{text}</a>' if _is_free(text) else text
        ),
        lambda text: f'<span title="{draw.kept("{} one")}">{text}</span>',
        lambda text: f"{text} <code>{draw.kept()}</code>",
        lambda text: f"{text} <kbd>{draw.kept('Ctrl+{}')}</kbd>",
        lambda text: f"{text} {_picture(draw, '<img src={}>')}",
        lambda text: f"{text} {_comment(draw)}",
    ]


def _is_free(text: str) -> bool:
    """Whether a text has no link in it, so that it may be one."""
    return not any(sign in text for sign in ("<a ", "<link", "[", "<http"))


_SIGN_AT_END = re.compile(r"[:\]][*~\]]")  # of an element; it is as a picture there


def _picture(draw: Draw, form: str) -> str:
    draw.drawn.same = False  # a mark after the element that it ends may get a space
    return draw.kept(form)


def _comment(draw: Draw) -> str:
    draw.drawn.same = False  # a browser shows the spaces before and after it as one
    return draw.kept("<!-- {} -->")


def xml(draw: Draw) -> str:
    """A book, or a tree of texts."""
    return draw.rng.choice((_book, _tree))(draw)


def _xml_wraps(draw: Draw) -> list[Wrap]:
    return [
        lambda text: f"<emphasis>{text}</emphasis>",
        lambda text: f'<link href="{draw.kept()}">{text}</link>',
        lambda text: f'{text} <literal translate="no">{draw.kept()}</literal>',
        lambda text: text + " " + _picture(draw, '<xref id="{}"/>'),
    ]


def _book(draw: Draw) -> str:
    wraps = _xml_wraps(draw)

    def paragraph() -> str:
        return f"  <para>{draw.text(ALL, wraps)}</para>"

    def title() -> str:
        return f'  <title id="{draw.kept()}">{draw.sentence(ALL)}</title>'

    def listing() -> str:
        form = draw.rng.choice((
            "<screen translate='no'>{} &lt;a></screen>", "<screen><![CDATA[{} < b]]></screen>",
            "<!-- {} -->", "<?x {}?>", '<p its:translate="no">{} one</p>',
        ))  # fmt: skip
        return f"  {draw.kept(form)}"

    def items() -> str:
        items = "".join(f"<item><para>{draw.text(ALL, wraps)}</para></item>" for _ in range(2))
        return f"  <list>{items}</list>"

    body = "\n".join(draw.some(paragraph, paragraph, title, listing, items))
    its = 'xmlns:its="http://www.w3.org/2005/11/its"'
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<book {its}>\n{body}\n</book>\n'


def _tree(draw: Draw) -> str:
    if draw.chance(0.3):
        return f'<t xml:space="preserve">{draw.sentence(ALL)}\n{draw.sentence(ALL)}</t>'
    parts = (f"<{tag}>{draw.text(ALL, _xml_wraps(draw))}</{tag}>" for tag in ("p1", "p2", "p3"))
    return f"<d>{''.join(parts)}</d>"


def markdown(draw: Draw) -> str:
    """A page of a README, or of a generator of sites."""
    forms = (
        *NAMED[:4],
        "%{~}",
        "<https://example.com/~>",
        *PLAIN[:6],
        "[^~]",
        ":~:",
        "$~ + 1$",
        "[[~]]",
    )
    wraps: list[Wrap] = [
        lambda text: f"**{text}**" if "*" not in text else text,
        lambda text: f"*{text}*" if "*" not in text else text,
        lambda text: f"[{text}]({draw.kept('{}.md#a')})" if _is_free(text) else text,
        lambda text: f'[{text}]({draw.kept()} "{draw.kept()} one")' if _is_free(text) else text,
        lambda text: f"{text} `{draw.kept()}`",
        lambda text: f"{text} {_picture(draw, '![{} one](a.png)')}",
        lambda text: f"{text} <kbd>{draw.kept()}</kbd>",
        lambda text: f"~~{text}~~" if "~~" not in text else text,
    ]

    def text() -> str:
        return draw.text(forms, wraps)

    def lines() -> str:
        draw.drawn.same = False  # a paragraph is written on one line
        return f"{text()}\n{text()}"

    def heading() -> str:
        end = draw.kept(" {#{}}") if draw.chance(0.3) else ""
        return f"{'#' * draw.rng.randint(1, 4)} {draw.sentence(forms, wraps, end=False)}{end}"

    def items() -> str:
        sign = draw.rng.choice(("- ", "* ", "1. ", "- [ ] "))
        inner = " " * sign.index(" ")
        return "\n".join(f"{sign}{text()}" for _ in range(3)) + f"\n{inner} - {text()}"

    def quote() -> str:
        return f"> [!NOTE]\n> {text()}" if draw.chance(0.5) else f"> {text()}"

    def table() -> str:
        cells = [draw.sentence(forms, wraps).replace("|", "") for _ in range(4)]
        return f"| {cells[0]} | {cells[1]} |\n|---|:-:|\n| {cells[2]} | {cells[3]} |"

    def program() -> str:
        return draw.kept(draw.rng.choice((
            "```python\nprint('{} one')\n```", "# 1\n\n    {} = one", "~~~\n{}\n~~~",
            '<img alt="{}">', "<!-- {} -->", "[ref]: https://{}", "import A from '{}'",
            "{: .{} }", "--8<-- \"{}.md\"", "*[HTML]: {} one", "[TOC]", ":::note {}",
            "%% {} one %%", "$$\n{}\n$$", "{% include \"{}\" %}", "![[{}.png]]", "{{< {} >}}",
            "export const {} = {a: 1}",
        )))  # fmt: skip

    def page() -> str:
        return f"<div>\n<p>{draw.text(forms[:4])}</p>\n</div>"

    def admonition() -> str:
        return f"!!! note\n    {text()}"

    def hard() -> str:
        return f"{text()}\\\n{text()}"

    def note() -> str:
        return f"[^{draw.kept()}]: {text()}"

    made = draw.some(
        text, text, lines, heading, heading, items, quote, table, program, program, page,
        admonition, hard, note, least=3, most=8,
    )  # fmt: skip
    draw.drawn.same &= not any(map(_SIGN_AT_END.search, made))
    front = draw.kept("---\ntitle: {} one\n---\n\n") if draw.chance(0.3) else ""
    return front + "\n\n".join(made) + "\n"
