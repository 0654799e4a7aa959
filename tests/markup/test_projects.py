"""Files in the shapes that real projects have, there and back."""

from pathlib import Path

import pytest

from tests.drawn_documents.drawing import Drawn
from tests.drawn_documents.engines import stub, translate_drawn
from tests.markup.stubs import translate
from tfexport.markup.document import Markup
from tfexport.markup.files import read_file

FOLDER = Path(__file__).parent / "projects"
KINDS = {
    ".po": "po", ".xml": "xml", ".json": "json-strings", ".md": "markdown", ".html": "html",
    ".vtt": "vtt", ".srt": "srt",
}  # fmt: skip
FILES = sorted(path.name for path in FOLDER.iterdir())
# Lines that a translator that copies changes: a catalog and XLIFF get their texts, a paragraph of
# HTML its white space as a browser shows it, a line of a subtitle another length.
CHANGED = {
    "django.po": 11, "linguist.ts.xml": 4, "page.html": 5, "lecture.vtt": 4, "docusaurus.md": 2,
    "angular.xlf.xml": 6, "plurals.ts.xml": 12, "segments.xlf.xml": 6, "xcode.xliff.xml": 3,
    "xliff2.xlf.xml": 10,
}  # fmt: skip
# Of a translation in capitals: what has to be there.
MADE = {
    "app.arb.json": ('"@@locale": "de"', '"Der Titel"', "GUTEN MORGEN, {name}!"),
    "angular.xlf.xml": (
        'MORGEN, <x id="INTERPOLATION" equiv-text="{{ name }}"/>!</target>\n        <context-group',
        'equiv-text="&lt;b&gt;"/>EIN BUCH<x id="CLOSE_BOLD_TEXT"', '"&lt;br/&gt;"/>MARIA SCHLÄFT.',
        '/>DAS BUCH<x id="CLOSE_LINK" ctype="x-a" equiv-text="&lt;/a&gt;"/> UND <x id="START_LINK',
        "Bücher}}</source>\n      </trans-unit>",
    ),
    "blade.html": (
        "@extends('layout')\n\n@section('content')\n", "@if ($books->count() > 0)\n", "@csrf\n",
        "{{-- Das sieht niemand. --}}", "@disabled($done)>GUTEN MORGEN!<",
    ),
    "django.po": (
        'msgstr "%(name)s KAUFT EIN BUCH FÜR %(price)s."',
        '<a href=\\"%(url)s\\">%(count)s BUCH</a>',
        'msgstr "Mouse"', '#~ msgstr "Old"',
    ),
    "docbook.xml": (
        "Morgen\")</programlisting>", "<![CDATA[a < b]]>", "<?page-break?>", ">a.txt</filename>",
        '<emphasis role="bold">EIN BUCH</emphasis>',
    ),
    "docusaurus.md": (
        "import Tabs from '@theme/Tabs';", "{children}</span>\n);", ":::tip Das ist gut",
        "<Highlight>WICHTIG</Highlight>. {/* a note */}WO", "<Button>Guten Morgen</Button>",
        "MARIA SCHLÄFT.",
    ),
    "erb.html": ('<%= link_to book.title, book_path(book), class: "a > b" %> IST GUT.',
                 "<%# Das sieht niemand. %>", ':title, "Guten Morgen" %>'),
    "film.srt": ("{\\an8}<i>GUTEN MORGEN!</i>", "- TOM: ICH", "- [LACHT] MARIA", "X1:100 X2:200"),
    "handlebars.html": ("{{!-- Das sieht niemand. --}}", "{{{bookLink}}}.", 'text="Guten Morgen"}}',
                        "{{book.title}} IST"),
    "hugo.md": ('title="Ein Buch" >}}', "{{% notice tip %}}\nICH LESE EIN BUCH.\n{{% /notice %}}"),
    "i18next.json": ("{{name, uppercase}}!", "$t(common.save) WO", "<1>BUCH</1>",
                     "<bold>SCHLÄFT</bold>"),
    "jekyll.md": (
        'puts "Guten Morgen"\n{% endhighlight %}', "{:toc}", "BUCH.\n{: .lead #first}",
        '[LIEST]({% post_url 2024-01-01-buch %}){:target="_blank"} EIN', ": DAS KANN",
        "$$ a + b $$",
    ),
    "jinja.html": ("{{ user.name|title }}!", "{{ url_for('book', id=book.id) }}", "HABE",
                   "{# Das sieht niemand. #}", "{% trans %}WO IST DER BAHNHOF?{% endtrans %}"),
    "laravel.json": ("MORGEN, :name!", '"{0} ICH HABE KEIN BUCH.|{1} ICH HABE EIN BUCH.|[2,*] ICH',
                     '<a href=\\":url\\" class=\\"btn\\">WO'),
    "lecture.vtt": ("<v Frau Weber>GUTEN", "<c.wichtig>BAHNHOF</c>?", "[APPLAUS]", "- TOM: MARIA",
                    "ICH <00:00:10.000>LESE", "Das sieht niemand.", "color: yellow"),
    "linguist.ts.xml": ('"unfinished">&amp;DATEI</', "<source>&amp;Datei</source>", "DAS BUCH %1",
                        "<translation>Where is the station?"),
    "mkdocs.md": (
        "# DER ANFANG {#start}", '!!! warning "DAS IST WICHTIG"\n\n    TOM LIEST', '=== "MONTAG"',
        "mkdocs serve", "++ctrl+s++", "{ .md-button }.", "{ align=left }", "Hyper Text Markup",
        '--8<-- "includes/abbreviations.md"', "BUCH.[^1]", "[^1]: MARIA",
    ),
    "obsidian.md": (
        "[[Das Buch#Kapitel 1|das Buch]]", "![[bild.png|200]]", "> [!tip]- DAS IST GUT\n> TOM",
        "BUCH. ^abc123", "%%\nDas sieht niemand.\n%%", "==TOM SCHLÄFT.==", "#wichtig/heute",
        "$a^2 + b^2$",
    ),
    "page.html": (
        '"Guten Morgen"}</script>', "<title>Stern</title>", "MORGEN!</a><a", 'alt="Ein Buch"',
        "if a &lt; b", "<kbd>Strg</kbd>", 'print("Guten Morgen")', ">Tom liest ein Buch.</p>",
        "MONTAG<option",
    ),
    "plurals.ts.xml": (
        "<numerusform>%n BÜCHER</numerusform>\n            <numerusform>%n BÜCHER</numerusform>",
        "<numerusform>ICH LESE %Ln BÜCHER VON %1.</numerusform></translation>",
        '"vanished">Where is it?', 'MORGEN, "%L1"!\nICH BIN', "<lengthvariant></lengthvariant>",
        'x1b"/> hier</source>\n        <translation type="unfinished"></translation>',
        '<translation type="unfinished">DAS WETTER',
    ),
    "segments.xlf.xml": (
        '<mrk mid="0" mtype="seg">TOM LIEST.</mrk> <mrk mid="1" mtype="seg">MARIA <g id="1">SCH',
        '</seg-source><target><mrk mid="0" mtype="seg">ICH BIN MÜDE.</mrk></target>\n<alt-trans',
        'IST <bpt id="1">&lt;b></bpt>DER BAHNHOF<ept id="1">&lt;/b></ept>?</target>',
        '"/></ph> hier</source></trans-unit>', '<mrk mtype="protected">Windows</mrk>!</target>',
    ),
    "strings.xml": (
        ">Lesen</string>", 'example="Tom">%1$s</xliff:g>!', "<b>BAHNHOF</b>",
        r">ICH BIN\'S.\nWER BIST DU?<", "ICH LESE %d BÜCHER.",
    ),
    "topic.dita.xml": ("{title}</ph> GERN", '<xref href="b.dita"/>', "a\n  b</codeblock>"),
    "xcode.xliff.xml": (
        "</source>\n        <target>GUTEN MORGEN, %@!</target>\n        <note>Begrüßung am",
        "<target>TOM LIEST %1$@ BÜCHER.\nMARIA SCHLÄFT &amp; TOM LIEST.</target>",
        '<target state="translated">I am', "<source>%#@books@</source>\n      </trans-unit>",
    ),
    "xliff2.xlf.xml": (
        '<target>HALLO <ph id="0" equiv="INTERPOLATION" disp="{{name}}"/>, HIER',
        '">DAS <pc id="2">BUCH</pc></pc>.</target>',
        '<source>Tom liest.</source><target>Tom is reading.</target>', "<skeleton>Guten Morgen<",
        "<source>Ich lese.</source></segment>", "GUTEN MORGEN!\n  ICH BIN MÜDE.</target>",
        '<target>WORT <pc id="1">EINS <mrk id="m" translate="no">Tom</mrk></pc><ph id="3" '
        'equiv="LINE_BREAK" disp="&lt;br/&gt;"/>MARIA SCHLÄFT.</target>',
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_a_project_comes_back(name: str) -> None:
    """Fails if a translator that copies changes more than the docs say."""
    content = (FOLDER / name).read_text(encoding="utf-8")
    made, _ = translate_drawn(Drawn(0, KINDS[Path(name).suffix], content), stub("copy"))
    old, new = content.split("\n"), made.split("\n")
    changed = sum(line not in new for line in old) + sum(line not in old for line in new)
    assert changed <= CHANGED.get(name, 0), made


@pytest.mark.parametrize("name", FILES)
def test_what_a_project_reads_stays(name: str) -> None:
    """Fails if a sign of a program is translated, or a text is not."""
    content = (FOLDER / name).read_text(encoding="utf-8")
    file = read_file(content, KINDS[Path(name).suffix], Markup())  # type: ignore[arg-type]
    made = file.write([translate(text.text, text.markup) for text in file.texts])
    for part in MADE[name]:
        assert part in made, made
