"""Markdown and HTML as people and editors write them."""

from __future__ import annotations

import io
import time
import zipfile
from typing import Any

import pytest

from embedkit.documents import Document, whole
from embedkit.documents.passages import _END, _HEADING, PassageCutter, Passages
from embedkit.documents.whole import UnreadableError, read_whole


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        # html and head need no end tags
        (
            "<!doctype html><html><head><title>T</title><h1>Hello</h1><p>All.",
            ("# Hello\n\nAll.", {"title": "T"}),
        ),
        ("<head><meta charset=utf-8><body>one<p>two", ("one\ntwo", {})),
        # the first title is the page's; pictures have titles of their own
        ("<title>Page</title><svg><title>icon</title></svg><p>a", ("a", {"title": "Page"})),
        ("<svg><title>icon</title></svg><p>a", ("a", {})),
        ("<svg><title>icon</svg>a<svg><style>a<b</style></svg>b<title/>c", ("abc", {})),
        # titles and what is written into forms hold no tags
        ("<title>Why is a<b &amp; c? - Forum</title><p>a", ("a", {"title": "Why is a<b & c? - Forum"})),
        ("<title>The <head> and <script></title><body>a", ("a", {"title": "The <head> and <script>"})),
        ("<title>T<!-- x</title><p>a</p><!-- y -->", ("a", {"title": "T<!-- x"})),
        ("<title>T</titlex></TITLE lang=en><p>a", ("a", {"title": "T</titlex>"})),
        ("<form><textarea>a &lt; <script></textarea><p>b</form>", ("a < <script>\n\nb", {})),
        ("<textarea><title></textarea><p>a", ("<title>\n\na", {})),
        ("<xmp>List<String> &amp;</xmp>a<script>b</script type=x>c", ("List<String> &amp;ac", {})),
        ("a<plaintext>b<b>c</b></plaintext>d", ("abcd", {})),  # nothing ends it in HTML
        ("<iframe><p>x</iframe>a<noembed><p>b</noembed>", ("a\nb", {})),
        # but if they do not end, those that follow are tags
        ("<title>T<p>a<textarea>b<p>c", ("T\na\nb\nc", {})),
        ("<title>T</title <p>a", ("a", {"title": "T"})),
        # what is hidden has no headings either
        ("<nav><h2>Menu</h2><p>x</p></nav><p>a</p>", ("a", {})),
        ("<p>a<![ endif]>b", ("ab", {})),  # of Office
        (
            "<details><summary>Refund policy</summary>Money back</details><select><option>Paris<option>Rome</select>",
            ("Refund policy\nMoney back\n\nParis\nRome", {}),
        ),
        ("<table><caption>Prices</caption><thead><tr><th>a", ("Prices\n\na", {})),
        ("a<pre>\nline  one\nline <b>two</b>\n</pre>b\nc", ("a\n\nline one\nline two\n\nb c", {})),
        # a comment in code is no heading
        ("<h2>Run</h2><pre># first\nmake</pre>", ("## Run\n\n # first\nmake", {})),
        ("<h1>G</h1><p>As root:<br># apt install x<br>#1", ("# G\n\nAs root:\n # apt install x\n#1", {})),
        # nor does it hide those that follow
        ("<pre>```python\nx</pre><h2>A</h2>", ("    ```python\nx\n\n## A", {})),
        ("<pre>B\n~~~~\n</pre><h2>A</h2>", ("B\n    ~~~~\n\n## A", {})),
        ("<pre>a\nb<h2>not closed</h2>c\nd", ("a\nb\n\n## not closed\nc d", {})),
        ("<p>a<br/>b<br>c<hr/>d", ("a\nb\nc\nd", {})),
        # a heading is one line, whatever is in it
        ("<h2><button>What is it?</button></h2><p>All.", ("## What is it?\n\nAll.", {})),
        ("<h1><div>Title</div><p>and <b>more</b></h1>a", ("# Title and more\na", {})),
        ("<h2>A<br>B</h3>c", ("## A B\nc", {})),
        ("<h2><img src=x></h2><p>a", ("a", {})),
        # but one that is not closed is its first line
        ("<h1><p>Title<p>a<p>b", ("# Title\na\nb", {})),
        ("<div><h2>Title</div>a<h3>b", ("## Title\n\na\n\n### b", {})),
        ("<h1>A<h2>B</h2>c", ("# A\n\n## B\nc", {})),
        # what is hidden ends with what is around it, and hides nothing if it does not end
        ("<div><nav>Menu</div><p>All.", ("All.", {})),
        ("<div><nav><div>Menu</div><p>x</nav><p>All.</div>", ("All.", {})),
        ("<h1>A<nav><h2>x</h2></nav> B</h1>c", ("# A B\nc", {})),
        ("<p>a</p><nav>Menu<p>All.", ("a\n\nMenu\nAll.", {})),
        ("<p>a<template>b", ("a\nb", {})),
        ("<body><nav><a>Only</a></nav></body>", ("Only", {})),
        ("<title>T</title><script>x = '</nav>'</script><nav></nav>", ("", {"title": "T"})),
        # what browsers show in place of what they can play, and what no reader sees
        (
            "<p>a</p><video src=x>No video.</video><iframe>f</iframe><object>o</object><canvas>c</canvas><p>b",
            ("a\n\nb", {}),
        ),
        ("a<datalist><option>x</datalist> <math><mi>x</mi><annotation>\\x</annotation></math>", ("a x", {})),
        ("<noframes>Only</noframes>", ("Only", {})),
        ("<p hidden>x</p><p>a</p><p style='color: red; DISPLAY : none'>x<p>b", ("a\n\nb", {})),
        (
            "<div hidden><div>x</div><h2>y</h2><pre>z</pre></div>a <span hidden>x<span>y</span>z</span>b",
            ("a b", {}),
        ),
        ("<h2 hidden>x</h2><p>a\n<input hidden><img hidden>b<span hidden />c", ("a bc", {})),
        ("<ul><li hidden>x<ul><li>y</ul>z<li>a</ul><p hidden=until-found>b", ("a\n\nb", {})),
        ("<table><tr hidden><td>x<td>y<tr><td>a<td hidden>x<tr><td>b</table>c", ("a\n\nb\nc", {})),
        ("<div><p hidden>x</div>a<p hidden>b", ("x\na\nb", {})),
        ("<div role=tabpanel hidden>a</div><p style='display:none;display:flex'>b", ("a\n\nb", {})),
        ("<p>a<ruby>b<rp hidden>x</ruby><p>c", ("ab\nc", {})),
        ("<body hidden><div hidden>a</div></body>", ("a", {})),
        # readings, which need no end tags
        (
            "<p><ruby>東<rt>とう</rt>京<rt>きょう</rt></ruby>へ行く<ruby>漢字<rp>(</rp><rt>かんじ</rt><rp>)</rp></ruby>",
            ("東京へ行く漢字", {}),
        ),
        ("<ruby>東<rt>とう<rb>京<rt>きょう</ruby>へ", ("東京へ", {})),
        ("<ruby><rb>東<rb>京<rt>とう<rt>きょう<rtc><rt>Tōkyō</rtc></ruby>へ", ("東京へ", {})),
        ("<h2><ruby>東<rp>(<rt>とう<rp>)</ruby>と</h2>a", ("## 東と\na", {})),
        ("<ruby>漢<br>字<rt>かん<br>じ</rt></ruby>は", ("漢\n字は", {})),
        # and hide nothing beyond their block
        ("<p><ruby>漢<rt>かん</p>a<p>b<ruby>字<rt>じ<p>c", ("漢\na\nb字\nc", {})),
        ("a<rt>b</rt>c", ("abc", {})),
        # tags and comments that do not end
        ("<p>a < b &amp; c<d", ("a < b & c<d", {})),
        ("<p>a<!-- b<p>c", ("a<!-- b<p>c", {})),
        ("<p>a<b x='<p>c<p>d</p>", ("a<b x='<p>c\nd", {})),
        ("<b x='<p>c<p>d</p>", ("<b x='<p>c\nd", {})),
        # tags that only look like those of headings
        ("<p>if x<h² then</p><p>a</h²> b", ("if x\na b", {})),
        ("<h9>a</h9> b<h²>", ("a b", {})),
    ],
)
def test_html(page: str, expected: tuple[str, dict[str, Any]]) -> None:
    assert read_whole("html", page.encode()) == expected


@pytest.mark.parametrize(
    ("line", "title"),
    [
        ("# A title", "A title"),
        ("## A title ##  ", "A title"),
        ("## A title\t#", "A title"),
        ("# Learning C#", "Learning C#"),
        ("# C# #", "C#"),
        ("# C#", "C#"),
        ("# #", "#"),
        ("#\ttab", "tab"),
    ],
)
def test_headings(line: str, title: str) -> None:
    assert read_whole("md", f"{line}\r\n\r\ntext".encode())[1] == {"title": title}


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("Run this:\n\n```sh\n# install it\npip install x\n```\n\n# Real title\n", "Real title"),
        ("~~~\r\n# a\r\n```\r\n# b\r\n~~~~\r\n# Title\r\n", "Title"),
        ("```not a fence```\n# Title\n", "Title"),
        ("```\n# never closed\n", None),
        ("Title\n=====\n\n## Sub\n", "Title"),
        ("\nC#\r\n=\r\n\r\ntext\r\n", "C#"),
        ("# A title\n===\n", "A title"),
        ("Text\n=> more\n\n## Sub", "Sub"),
    ],
)
def test_titles_of_markdown(text: str, title: str | None) -> None:
    assert read_whole("md", text.encode())[1].get("title") == title


@pytest.mark.parametrize(
    ("field", "title"),
    [
        ("1984", "1984"),
        ("No", "No"),
        ("2024-01-01", "2024-01-01"),
        ("", "T"),
        ("~", "T"),
        ("''", "T"),
        ("[a]", ["a"]),
    ],
)
def test_titles_in_front_matter_are_texts(field: str, title: str | list[str]) -> None:
    pytest.importorskip("yaml")
    content = f"---\ntitle: {field}\nyear: 1984\n---\n# T\n".encode()
    again = b"---\nyear: &y 1984\ntitle: *y\n---\n"
    assert read_whole("md", again)[1] == {"title": "1984", "year": 1984}
    assert read_whole("md", content) == ("# T\n", {"title": title, "year": 1984})


class Words:
    """Counts the words of a text as its tokens."""

    def __init__(self) -> None:
        self.prompts: dict[str, str] = {}

    def tokenize(self, texts: list[str]) -> dict[str, list[list[int]]]:
        return {"input_ids": [[0] * len(text.split()) for text in texts]}


def test_a_comment_in_code_is_no_border_of_passages() -> None:
    text = "# Top\n\nOne two three.\n\n```sh\n# build the thing\nmake\n```\n\n# Next\n\nFour five."
    found = PassageCutter(Words(), Passages(12)).cut(Document(text, "a"))
    assert [piece.text for piece in found] == [text[: text.index("\n\n# Next")], "# Next\n\nFour five."]
    assert [(piece.metadata or {})["passage"]["heading"] for piece in found] == ["Top", "Next"]


def insert_xml(before: Any, xml: str) -> None:
    """Put ``xml``, of the namespace w, before an element of python-docx."""
    from docx.oxml import parse_xml
    from docx.oxml.ns import nsdecls

    before.addprevious(parse_xml(xml.replace(">", f" {nsdecls('w')}>", 1)))


def read_word(document: Any) -> tuple[str, dict[str, Any]]:
    file = io.BytesIO()
    document.save(file)
    return read_whole("docx", file.getvalue())


def test_word_text_in_controls_insertions_and_text_boxes() -> None:
    word = pytest.importorskip("docx").Document()
    word.add_paragraph("The report", "Title")
    word.add_heading("Part", 2)
    last = word.add_paragraph("tab\tand\nbreak")._p
    run = "<w:r><w:t>{}</w:t></w:r>"
    insert_xml(last, f"<w:sdt><w:sdtContent><w:p>{run.format('control')}</w:p></w:sdtContent></w:sdt>")
    changes = f"<w:ins>{run.format(' new')}</w:ins><w:moveFrom>{run.format(' gone')}</w:moveFrom>"
    deleted = "<w:del><w:r><w:delText> old</w:delText></w:r></w:del>"
    insert_xml(last, f"<w:p>{run.format('A')}{changes}{deleted}{run.format(' word')}</w:p>")
    box = f"<w:r><w:pict><w:txbxContent><w:p>{run.format('boxed')}</w:p></w:txbxContent></w:pict></w:r>"
    insert_xml(last, f"<w:p>{box}{run.format('anchor')}</w:p>")
    assert read_word(word) == (
        "# The report\n\n## Part\n\ncontrol\n\nA new word\n\nanchor\n\nboxed\n\ntab\tand\nbreak",
        {"title": "The report"},
    )
    word.core_properties.title = "Of the file"
    assert read_word(word)[1] == {"title": "Of the file"}


def test_headings_of_word_have_six_levels() -> None:
    word = pytest.importorskip("docx").Document()
    for level in (5, 6, 7, 9):
        word.add_heading("a", level)
    assert read_word(word)[0] == "##### a\n\n###### a\n\n###### a\n\n###### a"


def test_breaks_of_word_are_lines() -> None:
    docx = pytest.importorskip("docx")
    word = docx.Document()
    word.add_heading("Annual report", 1).add_run().add_break()
    word.paragraphs[0].add_run("of 2024")
    paragraph = word.add_paragraph("The end")
    for kind in (docx.enum.text.WD_BREAK.PAGE, docx.enum.text.WD_BREAK.COLUMN):
        paragraph.add_run().add_break(kind)
        paragraph.add_run("Next")
    assert read_word(word)[0] == "# Annual report of 2024\n\nThe end\nNext\nNext"


def test_body_lines_of_word_are_no_headings_and_no_code() -> None:
    word = pytest.importorskip("docx").Document()
    for line in ("# apt install", "```python", "   ~~~", "#1"):
        word.add_paragraph(line)
    word.add_heading("Next", 2)
    text, metadata = read_word(word)
    assert text == " # apt install\n\n    ```python\n\n       ~~~\n\n#1\n\n## Next"
    assert not metadata and not whole.code_blocks(text)


@pytest.mark.parametrize(
    ("font", "code", "character"),
    [
        ("Symbol", "F06D", "μ"),
        ("Symbol", "00B1", "±"),
        ("Symbol", "F0FF", "\ufffd"),
        ("Wingdings", "F06D", "\ufffd"),
        ("Arial", "D83D", "\ufffd"),
        ("Cambria Math", "2264", "≤"),
        ("Times New Roman", "00E9", "é"),
        ("Symbol", "zz", "\ufffd"),
        ("Symbol", "110000", "\ufffd"),
    ],
)
def test_symbols_of_word(font: str, code: str, character: str) -> None:
    word = pytest.importorskip("docx").Document()
    paragraph = word.add_paragraph("take 5 ")
    paragraph.add_run("g")
    insert_xml(paragraph.runs[1]._r, f'<w:r><w:sym w:font="{font}" w:char="{code}"/></w:r>')
    assert read_word(word)[0] == f"take 5 {character}g"


def test_word_without_properties_has_no_title() -> None:
    docx = pytest.importorskip("docx")
    word = docx.Document()
    word.add_paragraph("Minutes")
    relations = word.part.package.rels
    (name,) = (name for name, relation in relations.items() if relation.reltype.endswith("/core-properties"))
    del relations[name]
    assert read_word(word) == ("Minutes", {})
    word.add_paragraph("Budget", "Title")
    assert read_word(word)[1] == {"title": "Budget"}


def test_hidden_text_of_word() -> None:
    word = pytest.importorskip("docx").Document()
    last = word.add_paragraph("end")._p
    run = "<w:r>{}<w:t>{}</w:t></w:r>"
    ruby = "<w:r><w:ruby><w:rubyPr/><w:rt>{}</w:rt><w:rubyBase>{}</w:rubyBase></w:ruby></w:r>"
    east = ruby.format(run.format("", "とう"), run.format("", "東"))
    capital = ruby.format(run.format("", "きょう"), run.format("", "京"))
    insert_xml(last, f"<w:p>{east}{capital}{run.format('', 'へ行く')}</w:p>")
    hidden = run.format("<w:rPr><w:vanish/></w:rPr>", "hidden")
    shown = run.format("<w:rPr><w:vanish w:val='0'/></w:rPr>", "shown")
    insert_xml(last, f"<w:p>{hidden}{shown}</w:p>")
    assert read_word(word)[0] == "東京へ行く\n\nshown\n\nend"


def test_equations_of_word_are_read() -> None:
    word = pytest.importorskip("docx").Document()
    last = word.add_paragraph("end")._p
    space = 'xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math"'
    equation = f"<m:oMath {space}><m:r><m:t>x</m:t></m:r><m:r><m:t>=5</m:t></m:r><m:r><m:t/></m:r></m:oMath>"
    before, after = (f"<w:r><w:t xml:space='preserve'>{text}</w:t></w:r>" for text in ("area ", " m"))
    insert_xml(last, f"<w:p>{before}{equation}{after}</w:p>")
    assert read_word(word)[0] == "area x=5 m\n\nend"


def test_notes_of_word_follow_the_text() -> None:
    docx = pytest.importorskip("docx")
    word = docx.Document()
    word.add_paragraph("Body.")
    space = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
    kinds = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    for kind in ("endnote", "footnote"):
        root = f"w:{kind}s"
        line = f'<w:{kind} w:type="{{}}" w:id="-1"><w:p><w:r><w:t>----</w:t></w:r></w:p></w:{kind}>'
        notes = "".join(
            f'<w:{kind} w:id="{n}"><w:p><w:r><w:{kind}Ref/></w:r><w:r><w:t>{kind} {n}</w:t></w:r></w:p></w:{kind}>'
            for n in (1, 2)
        )
        lines = line.format("separator") + line.format("continuationSeparator")
        content = f"<{root} {space}>{lines}{notes}</{root}>"
        part = docx.opc.part.Part(
            docx.opc.packuri.PackURI(f"/word/{kind}s.xml"),
            f"application/vnd.openxmlformats-officedocument.wordprocessingml.{kind}s+xml",
            content.encode(),
            word.part.package,
        )
        word.part.relate_to(part, f"{kinds}/{kind}s")
    assert read_word(word)[0] == "Body.\n\nfootnote 1\n\nfootnote 2\n\nendnote 1\n\nendnote 2"


@pytest.mark.parametrize(
    ("name", "encoding", "text"),
    [
        ("iso-2022-jp", "iso-2022-jp", "日本語のテキスト"),
        ("Shift_JIS", "cp932", "①日本語"),
        ("gb2312", "gb18030", "朱镕基"),
        ("euc-kr", "cp949", "똠방각하"),
        ("big5", "big5hkscs", "香港嘅㗎"),
        ("euc-jp", "euc-jp", "日本語"),
        ("EUC-JP", "euc_jis_2004", "第①"),
        ("tis-620", "cp874", "“สวัสดี”"),
        ("windows-874", "cp874", "สวัสดี"),
        ("iso-8859-9", "cp1254", "“şarkı”"),
        ("windows-1251", "cp1251", "текст"),
        ("iso-8859-1", "cp1252", "“naïve”"),
        ("utf-8", "utf-8", "naïve"),
    ],
)
def test_pages_in_the_encoding_that_they_name(name: str, encoding: str, text: str) -> None:
    page = f"<meta charset='{name}'><p>{text}</p>"
    assert read_whole("html", page.encode(encoding))[0] == text


def test_undefined_bytes_of_windows_are_controls() -> None:
    assert read_whole("html", b"<meta charset=windows-1252><p>caf\xe9 \x9d") == ("café \x9d", {})
    assert read_whole("html", b"<meta charset=windows-1251><p>\xf2\x98") == ("т\x98", {})
    with pytest.raises(UnreadableError, match="not valid UTF-8: byte 0xd2"):  # undefined in browsers as well
        read_whole("html", b"<meta charset=windows-1253><p>\xd2")


def test_word_tables_are_read_once() -> None:
    word = pytest.importorskip("docx").Document()
    table = word.add_table(3, 3)
    for number, cell in enumerate(cell for row in table.rows for cell in row.cells):
        cell.text = f"c{number}"
    table.cell(0, 0).merge(table.cell(0, 1)).text = "wide"
    table.cell(1, 0).merge(table.cell(2, 0)).text = "tall"
    inner = table.cell(1, 1).add_table(1, 2)
    inner.cell(0, 0).text, inner.cell(0, 1).text = "in", "ner"
    assert read_word(word)[0] == "wide\tc2\n\ntall\tc4\nin\tner\n\tc5\n\n\tc7\tc8"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("---\nWelcome\n\n---\n\nText\n", ("---\nWelcome\n\n---\n\nText\n", {})),
        ("---\n- a\n- b\n---\n# T\n", ("---\n- a\n- b\n---\n# T\n", {"title": "T"})),
        ("---\n\n# Big\n\n---\nText", ("---\n\n# Big\n\n---\nText", {"title": "Big"})),
        ("---\n**We** moved\n---\nText", ("---\n**We** moved\n---\nText", {})),
        ("---\n[Home](a.md) | [Next](b.md)\n---\n", ("---\n[Home](a.md) | [Next](b.md)\n---\n", {})),
        ("---\n| a | b |\n---\nText", ("---\n| a | b |\n---\nText", {})),
        ("---\n---\nText", ("Text", {})),
        ("---\na: 1\n---\nText", ("Text", {"a": 1})),
    ],
)
def test_text_between_rules_is_no_front_matter(text: str, expected: tuple[str, dict[str, Any]]) -> None:
    pytest.importorskip("yaml")
    assert read_whole("md", text.encode()) == expected


@pytest.mark.parametrize("field", ["a: b", "!!bool maybe", "!!timestamp soon", "!!int ''", "!!float ''"])
def test_fields_that_are_no_yaml_are_an_error(field: str) -> None:
    pytest.importorskip("yaml")
    with pytest.raises(UnreadableError, match="front matter is not valid YAML"):
        read_whole("md", f"---\nfield: {field}\n---\nText".encode())


def test_front_matter_that_holds_itself() -> None:
    with pytest.raises(UnreadableError, match="front matter is not valid YAML"):
        read_whole("md", b"---\na: &a [*a]\n---\ntext")


@pytest.mark.parametrize(
    "page", ["<a ", '<a "', "<!--", "<!", "<nav>", "</p", "<h1>", "&amp", "<title>", "</title "]
)
def test_what_does_not_end_takes_no_time(page: str) -> None:
    begin = time.perf_counter()
    read_whole("html", page.encode() * 20_000)
    assert time.perf_counter() - begin < 10  # one after the other they took minutes


@pytest.mark.parametrize("page", ["<!--x>" * 1000, '<a y=">" ' * 1000 + "x='"])
def test_many_tags_that_do_not_end_are_damage(page: str) -> None:
    with pytest.raises(UnreadableError, match="more than 20 tags or comments do not end"):
        read_whole("html", page.encode())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("a: &a [1,1]\nb: [*a, *a]\n", None),
        ("a: &a {x: 1}\nb: {<<: *a, y: 2}\n", None),
        (
            "a0: &a0 [1,1,1,1,1,1,1,1]\n"
            + "".join(f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 8)}]\n" for n in range(1, 12)),
            "its aliases repeat too much",
        ),
        (
            "a0: &a0 {x: 1}\n"
            + "".join(f"a{n}: &a{n} {{<<: [{','.join([f'*a{n - 1}'] * 8)}]}}\n" for n in range(1, 12)),
            "its aliases repeat too much",
        ),
        (f"n: 0x{'f' * 5000}\n", "an integer has more than 4,200 digits"),
        (f"n: [{{a: 0x{'f' * 5000}}}]\n", "an integer has more than 4,200 digits"),
        (f"n: {'9' * 5000}\n", "4300"),
    ],
)
def test_front_matter_that_stands_for_too_much(fields: str, message: str | None) -> None:
    pytest.importorskip("yaml")
    content = f"---\n{fields}---\ntext".encode()
    if message is None:
        assert read_whole("md", content)[0] == "text"
        return
    with pytest.raises(UnreadableError, match=f"front matter is not valid YAML: .*{message}"):
        read_whole("md", content)


@pytest.mark.parametrize("limit", ["_MOST_XML", "_MOST_UNPACKED"])
def test_word_files_that_unpack_to_too_much(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = io.BytesIO()
    pytest.importorskip("docx").Document().save(packed)
    assert read_whole("docx", packed.getvalue()) == ("", {})
    monkeypatch.setattr(whole, limit, 5 * len(packed.getvalue()))
    with zipfile.ZipFile(packed, "a", zipfile.ZIP_DEFLATED) as file:
        file.writestr("word/more.xml", b" " * 5 * len(packed.getvalue()))
    with pytest.raises(UnreadableError, match="the Word file is larger than"):
        read_whole("docx", packed.getvalue())


def test_pdf_encrypted_with_aes(monkeypatch: pytest.MonkeyPatch) -> None:
    pypdf = pytest.importorskip("pypdf")

    def no_cryptography(*_: Any) -> None:
        raise pypdf.errors.DependencyError("cryptography>=3.1 is required for AES algorithm")

    monkeypatch.setattr(pypdf, "PdfReader", no_cryptography)
    with pytest.raises(UnreadableError, match=r"encrypted with AES, .*: pip install cryptography"):
        read_whole("pdf", b"")


@pytest.mark.parametrize("password", ["", "secret"])
def test_an_encrypted_pdf_is_read_if_it_needs_no_password(password: str) -> None:
    pypdf = pytest.importorskip("pypdf")
    writer, file = pypdf.PdfWriter(), io.BytesIO()
    writer.add_blank_page(100, 100)
    writer.add_metadata({"/Title": "A report"})
    writer.encrypt(password, "the owner's", algorithm="RC4-128")
    writer.write(file)
    if not password:
        assert read_whole("pdf", file.getvalue()) == ("", {"pages": 1, "title": "A report"})
        return
    with pytest.raises(UnreadableError, match="the PDF is protected by a password"):
        read_whole("pdf", file.getvalue())


def test_ligatures_of_a_pdf_are_letters_and_its_title_has_no_nul() -> None:
    pytest.importorskip("pypdf")
    content = r"BT /F1 12 Tf 20 100 Td (\014nal e\016cient work) Tj ET"
    font = "/Type /Font /Subtype /Type1 /BaseFont /CMR10 /Encoding << /Differences [12 /fi 14 /ffi] >>"
    objects = (
        "<< /Type /Catalog /Pages 2 0 R >>",
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        f"<< /Type /Page /Parent 2 0 R /Resources << /Font << /F1 << {font} >> >> >> /Contents 4 0 R >>",
        f"<< /Length {len(content)} >>\nstream\n{content}\nendstream",
        r"<< /Title (\376\377\000A\000\000\000B) >>",
    )
    pdf, places = "%PDF-1.4\n", []
    for number, one in enumerate(objects, 1):
        places.append(len(pdf))
        pdf += f"{number} 0 obj\n{one}\nendobj\n"
    table = "".join(f"{place:010d} 00000 n \n" for place in places)
    trailer = f"trailer << /Size 6 /Root 1 0 R /Info 5 0 R >>\nstartxref\n{len(pdf)}\n%%EOF"
    pdf += f"xref\n0 6\n0000000000 65535 f \n{table}{trailer}"
    expected = ("final efficient work", {"pages": 1, "title": "AB"})
    assert read_whole("pdf", pdf.encode()) == expected


def test_long_runs_take_no_time() -> None:
    begin = time.perf_counter()
    read_whole("md", b"# a" + b" " * 100_000 + b"b")
    text = "a" + "." * 100_000 + "b\n# c" + " " * 100_000 + "d"
    assert list(_END.finditer(text)) and _HEADING.match(text[text.index("#") :])
    assert time.perf_counter() - begin < 5
