"""Files that hold one document each: Markdown, HTML, PDF, Word, and plain text read whole.

Headings of HTML and Word become Markdown's (``# …``), so that passages are cut at them.
"""

from __future__ import annotations

import datetime
import io
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from html.parser import HTMLParser
from typing import Any

__all__ = [
    "WHOLE",
    "UnreadableError",
    "code_blocks",
    "heading_text",
    "import_reader",
    "not_utf8",
    "read_whole",
    "within",
]

WHOLE = ("text", "md", "html", "pdf", "docx")
"""Formats of one document per file; "text" is a ``.txt`` file read whole."""

_MODULES = {"pdf": ("pypdf", "pypdf"), "docx": ("docx", "python-docx")}
_UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")
_FRONT_MATTER = re.compile(r"---[ \t]*\r?\n(.*?)^(?:---|\.\.\.)[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(r"^#{1,2}[ \t]+(\S.*)$", re.MULTILINE)
_UNDERLINED = re.compile(r"\s*(?!#{1,6}[ \t]|```|~~~)(\S.*)\n=+[ \t\r]*$", re.MULTILINE)
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})(.*)$", re.MULTILINE)


def not_utf8(content: bytes, error: UnicodeDecodeError, *, first: bool = True) -> str:
    """Why ``content`` cannot be read; ``first``: a file begins with it."""
    hint = "; the file looks like UTF-16: convert it" if first and content[:2] in _UTF16_BOMS else ""
    return f"not valid UTF-8: byte 0x{content[error.start]:02x} at byte {error.start + 1}{hint}"


class UnreadableError(Exception):
    """The file is damaged or protected; the message says how."""


def import_reader(format: str) -> Any:
    """Import the library that reads ``format``, if one is needed.

    Raises:
        ImportError: it is not installed; names the extra.
    """
    if format not in _MODULES:
        return None
    from importlib import import_module

    module, package = _MODULES[format]
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(
            f"reading .{format} needs {package}, which is not installed: pip install 'embedkit[files]' "
            f"(--exclude '*.{format}' leaves these files out)"
        ) from error


def read_whole(format: str, content: bytes) -> tuple[str, dict[str, Any]]:
    """Text and metadata of a file.

    Raises:
        UnreadableError: it is damaged, encrypted, or not UTF-8.
        ImportError: a library is missing.
    """
    if format == "pdf":
        return _pdf(content)
    if format == "docx":
        return _docx(content)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableError(not_utf8(content, error)) from None
    if format == "md":
        return _markdown(text)
    if format == "html":
        return _html(text)
    return text, {}


def _markdown(text: str) -> tuple[str, dict[str, Any]]:
    metadata: dict[str, Any] = {}
    match = _FRONT_MATTER.match(text)
    if match is not None and (fields := _front_matter(match[1])) is not None:
        metadata = fields
        text = text[match.end() :].lstrip("\r\n")
    title = _title(text)
    if title is not None:
        metadata.setdefault("title", title)
    return text, metadata


def _title(text: str) -> str | None:
    """The first line if it is underlined, or the first heading of level 1 or 2."""
    underlined = _UNDERLINED.match(text)
    if underlined is not None:
        return underlined[1].strip()
    code = code_blocks(text)
    for heading in _HEADING.finditer(text):
        if not within(code, heading.start()):
            return heading_text(heading[1])
    return None


def code_blocks(text: str) -> list[tuple[int, int]]:
    """Begin and end of each fenced block of code in Markdown; one that is not closed ends with the text."""
    blocks: list[tuple[int, int]] = []
    begin, fence = 0, ""
    for match in _FENCE.finditer(text):
        marks, rest = match[1], match[2].strip()
        if not fence:
            if marks[0] == "~" or "`" not in rest:  # else code within a line
                begin, fence = match.start(), marks
        elif marks.startswith(fence) and not rest:
            blocks.append((begin, match.end()))
            fence = ""
    return [*blocks, (begin, len(text))] if fence else blocks


def within(spans: Sequence[tuple[int, int]], at: int) -> bool:
    """Whether one of ``spans``, which are in order, holds the position ``at``."""
    before = bisect_right(spans, at, key=lambda span: span[0])
    return before > 0 and at < spans[before - 1][1]


def heading_text(line: str) -> str:
    """A heading of Markdown behind its marks: without blanks and the marks that may close it."""
    return line.rstrip(" \t\r").rstrip("#").rstrip(" \t") or line.strip()


def _front_matter(content: str) -> dict[str, Any] | None:
    """The fields of front matter; ``None``: it is text between two rules."""
    try:
        import yaml
    except ImportError as error:
        raise ImportError(
            "reading the front matter of .md needs PyYAML, which is not installed: pip install 'embedkit[files]'"
        ) from error
    try:
        fields = yaml.safe_load(content)
        if isinstance(fields, dict):
            return {str(name): _as_json(value) for name, value in fields.items()}
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # the last: a list may hold itself
        reason = " ".join(str(error).split())
        raise UnreadableError(f"the front matter is not valid YAML: {reason[:200]}") from None
    return {} if fields is None else None


def _as_json(value: Any) -> Any:
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (list, tuple, set)):
        return [_as_json(item) for item in value]
    if isinstance(value, dict):
        return {str(name): _as_json(item) for name, item in value.items()}
    return value.hex() if isinstance(value, bytes) else value


class _Text(HTMLParser):
    """The visible text of a page, a block per line, headings as Markdown's."""

    _HIDDEN = frozenset(("script", "style", "noscript", "template", "svg", "head", "nav"))
    _BLOCKS = frozenset(
        re.findall(
            r"\w+",
            "address article aside blockquote br button caption center dd details dialog div dl dt fieldset figcaption "
            "figure footer form h1 h2 h3 h4 h5 h6 header hgroup hr legend li main menu ol optgroup option p pre "
            "section select summary table tbody td textarea tfoot th thead tr ul",
        )
    )

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.lines: list[str] = []
        self.title: list[str] = []
        self._line: list[str] = []
        self._hidden: list[str] = []
        self._in_title = False
        self._in_pre = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "title":
            self._in_title = "svg" not in self._hidden and not self.title
            return
        if tag == "body" or (tag in self._BLOCKS and self._hidden == ["head"]):
            self._hidden.clear()  # a head that was not closed
        if tag in self._HIDDEN:
            self._hidden.append(tag)
        elif tag in self._BLOCKS and not self._hidden:
            heading = len(tag) == 2 and tag[0] == "h" and tag[1].isdigit()
            self.end_line()
            if heading:
                self.end_line()
                self._line.append(f"{'#' * int(tag[1])} ")
            self._in_pre = tag == "pre" or (self._in_pre and not heading)  # a heading: pre was not closed

    def handle_endtag(self, tag: str) -> None:
        if tag == "title":
            self._in_title = False
        elif tag in self._hidden:
            while self._hidden.pop() != tag:
                pass
        elif tag in self._BLOCKS and not self._hidden:
            self.end_line()
            if tag == "pre":
                self._in_pre = False

    def parse_marked_section(self, i: int, report: bool = True) -> int:
        """``<![ endif]>`` and the like of Office: no text, where html.parser of Python 3.11 raises AssertionError."""
        return self.parse_bogus_comment(i)

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title.append(data)
        elif not self._hidden:
            first, *others = data.split("\n") if self._in_pre else [data]
            self._line.append(first)
            for line in others:
                self.end_line()
                self._line.append(line)

    def end_line(self) -> None:
        """Begin a new line, if only an empty one."""
        line = " ".join("".join(self._line).split())
        # indented: a comment in code is no heading
        self.lines.append(f" {line}" if self._in_pre and line.startswith("#") else line)
        self._line.clear()


def _html(content: str) -> tuple[str, dict[str, Any]]:
    parser = _Text()
    parser.feed(content)
    parser.close()
    parser.end_line()
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(parser.lines)).strip("\n")
    title = " ".join("".join(parser.title).split())
    return text, {"title": title} if title else {}


def _pdf(content: bytes) -> tuple[str, dict[str, Any]]:
    pypdf = import_reader("pdf")
    try:
        reader = pypdf.PdfReader(io.BytesIO(content))
        if reader.is_encrypted and not reader.decrypt(""):
            raise UnreadableError("the PDF is protected by a password")
        text = "\n\n".join(page.extract_text() for page in reader.pages).strip()
        title = reader.metadata.title if reader.metadata else None
        pages = len(reader.pages)
    except UnreadableError:
        raise
    except Exception as error:  # pypdf raises errors of many types for damaged files
        raise UnreadableError(f"the PDF is damaged: {' '.join(str(error).split())[:200]}") from None
    # fonts without a table of characters yield lone surrogates and NULs
    text = text.replace("\x00", "").encode("utf-8", "replace").decode("utf-8")
    return text, {"pages": pages, **({"title": str(title)} if title else {})}


def _docx(content: bytes) -> tuple[str, dict[str, Any]]:
    docx = import_reader("docx")
    try:
        document = docx.Document(io.BytesIO(content))
        word = _Word(lambda paragraph: docx.text.paragraph.Paragraph(paragraph, document).style)
        lines = list(word.lines(document.element.body))
        title = document.core_properties.title or word.title
    except Exception as error:  # a zip archive of XML: errors of three libraries
        raise UnreadableError(f"the Word file is damaged: {' '.join(str(error).split())[:200]}") from None
    return "\n\n".join(line for line in lines if line.strip()), {"title": title} if title else {}


class _Word:
    """The visible text of a Word file's elements, each once: with what is inserted, without what is deleted.

    (python-docx leaves out content controls, insertions and nested tables, and repeats merged cells.)
    """

    _SPACE = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
    _TEXT = frozenset(("t", "tab", "br", "cr", "noBreakHyphen", "ptab"))
    _SECOND_FORM = "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"  # of a text box
    _HIDDEN = frozenset(("pPr", "rPr", "tblPr", "trPr", "tcPr", "sdtPr", "del", "moveFrom", _SECOND_FORM))

    def __init__(self, style: Callable[[Any], Any]) -> None:
        self.title = ""
        self._style = style

    def lines(self, element: Any, *, marked: bool = True) -> Iterator[str]:
        """A line per paragraph, ``marked`` if it is a heading, and per row of a table."""
        for kind, child in self._below(element, frozenset(("p", "tr"))):
            if kind == "tr":
                cells = self._below(child, frozenset(("tc",)))
                yield "\t".join("\n".join(self.lines(cell, marked=False)) for _, cell in cells)
                continue
            text = "".join(str(part) for _, part in self._below(child, self._TEXT))
            yield self._marks(child, text) + text if marked and text.strip() else text
            for _, box in self._below(child, frozenset(("txbxContent",))):
                yield from self.lines(box, marked=marked)

    def _marks(self, paragraph: Any, text: str) -> str:
        style = self._style(paragraph)
        name = (style.name if style is not None else "") or ""
        if name == "Title":
            self.title = self.title or text.strip()
            return "# "
        level = re.fullmatch(r"Heading (\d)", name)
        return f"{'#' * int(level[1])} " if level else ""

    def _below(self, element: Any, kinds: frozenset[str]) -> Iterator[tuple[str, Any]]:
        """The outermost elements of ``kinds`` below ``element``, without those in text boxes."""
        for child in element:
            kind = child.tag.removeprefix(self._SPACE) if isinstance(child.tag, str) else ""
            if kind in kinds:
                yield kind, child
            elif kind not in self._HIDDEN and kind != "txbxContent":
                yield from self._below(child, kinds)
