"""Files that hold one document each: Markdown, HTML, PDF, Word, and plain text read whole.

Headings of HTML and Word become Markdown's (``# …``), so that passages are cut at them.
"""

from __future__ import annotations

import datetime
import io
import re
import string
import unicodedata
import zipfile
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

from .errors import UnreadableError
from .html_page import as_text, read_page

__all__ = [
    "READ_IN_PARTS",
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

READ_IN_PARTS = ("pdf", "docx")
"""Those of parts that lie anywhere in the file, of which most may be images: not read as one piece of memory."""

_MODULES = {"pdf": ("pypdf", "pypdf"), "docx": ("docx", "python-docx")}
_UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")
_MOST_KEPT = 64 << 20
"""Bytes of a PDF of which all parts that were read are kept; of a larger one those of the page."""
_MOST_UNPACKED = 256 << 20
_MOST_XML = 64 << 20
"""Bytes of a Word file's parts, all and those of XML, which takes many times as much memory: 64 MiB of zeros are packed
in 64 kB."""
_MOST_ALIASED = 100_000
"""Characters and values of front matter, those of an alias counted at each place: a few lines may mean billions."""
_MOST_BITS = 14_000
"""Of an integer: Python writes none of more than 4,300 digits."""
_FRONT_MATTER = re.compile(r"---[ \t]*\r?\n(.*?)^(?:---|\.\.\.)[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
_CHARSET = re.compile(rb"""<meta\s[^>]*charset\s*=\s*["']?([\w-]+)""", re.IGNORECASE)
_CHARSET_WITHIN = 1024  # bytes, as browsers look for it
# All of which browsers read as windows-1252.
_WESTERN = ("iso-8859-1", "latin1", "us-ascii", "ascii", "cp1252")
_ENCODING = re.compile(r"windows-125\d|iso-8859-\d+|koi8-[ru]|iso-2022-jp")
_WINDOWS = re.compile(r"(?:windows-|cp)(?:125\d|874)")
_CONTROLS = {0xDC00 + byte: byte for byte in range(0x80, 0xA0)}  # by what "surrogateescape" makes of a byte
_WIDER = {  # what browsers read for an encoding: the one that most pages mean, which holds it
    **dict.fromkeys(_WESTERN, "cp1252"),
    **dict.fromkeys(("shift_jis", "shift-jis", "sjis", "x-sjis", "windows-31j"), "cp932"),
    **dict.fromkeys(("gb2312", "gbk", "x-gbk", "gb18030"), "gb18030"),
    **dict.fromkeys(("euc-kr", "ks_c_5601-1987", "windows-949"), "cp949"),
    **dict.fromkeys(("big5", "big5-hkscs"), "big5hkscs"),
    **dict.fromkeys(("euc-jp", "x-euc-jp"), "euc_jis_2004"),
    **dict.fromkeys(("tis-620", "iso-8859-11", "windows-874"), "cp874"),
    **dict.fromkeys(("iso-8859-9", "latin5"), "cp1254"),
}
_HEADING = re.compile(r"^#{1,2}[ \t]+(\S.*)$", re.MULTILINE)
_UNDERLINED = re.compile(r"\s*(?!#{1,6}[ \t]|```|~~~)(\S.*)\n=+[ \t\r]*$", re.MULTILINE)
_FIELD = re.compile(r"^[\w\"'][^:\n]*:(?:\s|$)", re.MULTILINE)
_LIGATURES = {point: unicodedata.normalize("NFKC", chr(point)) for point in range(0xFB00, 0xFB07)}
_SYMBOLS = {  # of the font Symbol
    **dict(zip(string.ascii_uppercase, "ΑΒΧΔΕΦΓΗΙϑΚΛΜΝΟΠΘΡΣΤΥςΩΞΨΖ", strict=True)),
    **dict(zip(string.ascii_lowercase, "αβχδεφγηιϕκλμνοπθρστυϖωξψζ", strict=True)),
    **{character: character for character in "0123456789.,:;!?()[]{}+<=>/%&|_"},
    **dict(zip("-\xa3\xa5\xae\xb0\xb1\xb3\xb4\xb7\xb9\xbb", "−≤∞→°±≥×•≠≈", strict=True)),
}
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})(.*)$", re.MULTILINE)


def not_utf8(content: bytes, error: UnicodeDecodeError, *, first: bool = True) -> str:
    """Why ``content`` cannot be read; ``first``: a file begins with it."""
    utf16 = first and content[:2] in _UTF16_BOMS
    hint = "; the file looks like UTF-16: convert it" if utf16 else "; convert it: iconv -f ENCODING -t UTF-8"
    return f"not valid UTF-8: byte 0x{content[error.start]:02x} at byte {error.start + 1}{hint}"


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


def read_whole(format: str, content: bytes | IO[bytes]) -> tuple[str, dict[str, Any]]:
    """Text and metadata of a file.

    Args:
        format: one of `WHOLE`.
        content: of the file; of those `READ_IN_PARTS` also the file, open and seekable.

    Raises:
        UnreadableError: it is damaged, encrypted, or not UTF-8.
        ImportError: a library is missing.
    """
    if format in READ_IN_PARTS:
        file = io.BytesIO(content) if isinstance(content, bytes) else content
        return _pdf(file) if format == "pdf" else _docx(file)
    assert isinstance(content, bytes)
    told = _charset(content) if format == "html" else None
    try:
        seven_bits = told == "iso-2022-jp" and b"\x1b" in content  # which is UTF-8 as well
        text = content.decode("iso-2022-jp" if seven_bits else "utf-8-sig")
    except UnicodeDecodeError as error:
        try:
            text = _decode(content, told or "utf-8")
        except (LookupError, UnicodeError):  # no such encoding, or another than it says
            raise UnreadableError(not_utf8(content, error)) from None
    if format == "md":
        return _markdown(text)
    if format == "html":
        return read_page(text)
    return text, {}


def _charset(content: bytes) -> str | None:
    """The encoding that a page says it has, by its name in Python; ``None``: none, or one that is not read."""
    told = _CHARSET.search(content[:_CHARSET_WITHIN])
    name = told[1].decode("ascii").lower() if told else ""
    return _WIDER.get(name, name if _ENCODING.fullmatch(name) else None)


def _decode(content: bytes, encoding: str) -> str:
    """Text in ``encoding``; bytes of Windows' that it leaves undefined are control characters, as in browsers."""
    if _WINDOWS.fullmatch(encoding) is None:
        return content.decode(encoding)
    text = content.decode(encoding, "surrogateescape").translate(_CONTROLS)
    text.encode()  # raises where other bytes are left
    return text


def _markdown(text: str) -> tuple[str, dict[str, Any]]:
    metadata: dict[str, Any] = {}
    match = _FRONT_MATTER.match(text)
    if match is not None and (fields := _front_matter(match[1])) is not None:
        metadata = fields
        text = text[match.end() :].lstrip("\r\n")
    title = _title(text)
    if title is not None and not str(metadata.get("title") or "").strip():
        metadata["title"] = title
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
    """A heading of Markdown after its marks: without blanks and the marks that may close it, which follow a blank."""
    line = line.rstrip(" \t\r")
    text = line.rstrip("#")
    return text.rstrip(" \t") if text.endswith((" ", "\t")) else line


def _as_title(node: Any) -> Any:
    """A scalar as text: 1984 and No are titles, too. The node itself stays, which may be another field's alias."""
    import yaml

    if not isinstance(node, yaml.ScalarNode) or node.tag.endswith(":null"):
        return node
    return yaml.ScalarNode("tag:yaml.org,2002:str", node.value)


def _front_matter(content: str) -> dict[str, Any] | None:
    """The fields of front matter; ``None``: it is text between two rules."""
    try:
        import yaml
    except ImportError as error:
        raise ImportError(
            "reading the front matter of .md needs PyYAML, which is not installed: pip install 'embedkit[files]'"
        ) from error
    try:
        loader = yaml.SafeLoader(content)
        root = loader.get_single_node()
        if root is not None and _size(root, {}) > max(_MOST_ALIASED, 4 * len(content)):
            raise ValueError("its aliases repeat too much")
        if isinstance(root, yaml.MappingNode):
            root.value = [
                (name, _as_title(value) if name.value == "title" else value) for name, value in root.value
            ]
        try:
            fields = None if root is None else loader.construct_document(root)
        except (LookupError, AttributeError):  # of "!!bool maybe", "!!int ''" and the like
            raise ValueError("a value does not fit its tag") from None
        if isinstance(fields, dict):
            return {str(name): _as_json(value) for name, value in fields.items()}
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # the last: a list may hold itself
        if _FIELD.search(content) is None:
            return None
        reason = " ".join(str(error).split())
        raise UnreadableError(f"the front matter is not valid YAML: {reason[:200]}") from None
    return None if content.strip() else {}  # headings are comments to YAML


def _size(node: Any, known: dict[int, int]) -> int:
    """Characters and values of a YAML node; ``known``: of the nodes counted before, by their `id`."""
    if id(node) not in known:
        known[id(node)] = 1  # while it is counted: it may hold itself
        parts = node.value if node.id != "mapping" else [part for pair in node.value for part in pair]
        known[id(node)] += len(parts) if node.id == "scalar" else sum(_size(part, known) for part in parts)
    return known[id(node)]


def _as_json(value: Any) -> Any:
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        raise ValueError("an integer has more than 4,200 digits")
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (list, tuple, set)):
        return [_as_json(item) for item in value]
    if isinstance(value, dict):
        return {str(name): _as_json(item) for name, item in value.items()}
    return value.hex() if isinstance(value, bytes) else value


def _pdf(file: IO[bytes]) -> tuple[str, dict[str, Any]]:
    pypdf = import_reader("pdf")
    try:
        reader = pypdf.PdfReader(file)
        if reader.is_encrypted and not reader.decrypt(""):
            raise UnreadableError("the PDF is protected by a password")
        large = file.seek(0, io.SEEK_END) > _MOST_KEPT
        texts = []
        for page in reader.pages:
            texts.append(page.extract_text())
            if large:
                reader.resolved_objects.clear()  # images among them
        text = "\n\n".join(texts).strip()
        title = _clean(str((reader.metadata and reader.metadata.title) or ""))
        pages = len(reader.pages)
    except UnreadableError:
        raise
    except pypdf.errors.DependencyError:
        raise UnreadableError(
            "the PDF is encrypted with AES, and reading it needs cryptography, which is not installed: "
            "pip install cryptography"
        ) from None
    except Exception as error:  # pypdf raises errors of many types for damaged files
        raise UnreadableError(f"the PDF is damaged: {' '.join(str(error).split())[:200]}") from None
    # ff fi fl ffi ffl st: glyphs of a font, which models do not know
    text = _clean(text).translate(_LIGATURES)
    return text, {"pages": pages, **({"title": title} if title else {})}


def _clean(text: str) -> str:
    """``text`` without the lone surrogates and NULs that fonts without a table of characters yield, and some titles."""
    return text.replace("\x00", "").encode("utf-8", "replace").decode("utf-8")


def _docx(file: IO[bytes]) -> tuple[str, dict[str, Any]]:
    docx = import_reader("docx")
    try:
        parts = zipfile.ZipFile(file).infolist()
        xml = sum(part.file_size for part in parts if part.filename.lower().endswith((".xml", ".rels")))
        if xml > _MOST_XML or sum(part.file_size for part in parts) > _MOST_UNPACKED:
            raise UnreadableError(
                f"the Word file is larger than {_MOST_XML >> 20} MiB of XML or {_MOST_UNPACKED >> 20} MiB in all, "
                "unpacked"
            )
        document = docx.Document(file)
        word = _Word(lambda paragraph: docx.text.paragraph.Paragraph(paragraph, document).style)
        lines = list(word.lines(document.element.body))
        for notes in _notes(document):
            lines += word.lines(notes)
        # where a file has no properties, python-docx makes some up
        told = any(
            relation.reltype.endswith("/core-properties") for relation in document.part.package.rels.values()
        )
        title = (document.core_properties.title if told else "") or word.title
    except UnreadableError:
        raise
    except Exception as error:  # a zip archive of XML: errors of three libraries
        raise UnreadableError(f"the Word file is damaged: {' '.join(str(error).split())[:200]}") from None
    return "\n\n".join(line for line in lines if line.strip()), {"title": title} if title else {}


def _notes(document: Any) -> Iterator[Any]:
    """The footnotes, then the endnotes of a Word file, without the lines that separate them from the text."""
    from docx.oxml import parse_xml

    for kind in ("footnote", "endnote"):
        for relation in document.part.rels.values():
            if not relation.is_external and relation.reltype.endswith(f"/{kind}s"):
                for note in parse_xml(relation.target_part.blob):
                    if note.get(f"{_Word._SPACE}type") in (None, "normal"):
                        yield note


_SYMBOL_FONTS = frozenset(("Symbol", "Webdings", "Wingdings", "Wingdings 2", "Wingdings 3"))


def _symbol(font: str | None, code: str | None) -> str:
    """A character of Word by its font and hexadecimal code; U+FFFD for pictures and what else only a font knows."""
    try:
        point = int(code or "", 16)
    except ValueError:
        return "\ufffd"
    if 0xE000 <= point <= 0xF8FF or (point < 0x100 and font in _SYMBOL_FONTS):  # Word means the private area
        return _SYMBOLS.get(chr(point & 0xFF), "\ufffd") if font == "Symbol" else "\ufffd"
    return chr(point) if point < 0xD800 or 0xE000 <= point <= 0x10FFFF else "\ufffd"


class _Word:
    """The visible text of a Word file's elements, each once: with what is inserted, without what is deleted.

    (python-docx leaves out content controls, insertions and nested tables, and repeats merged cells.)
    """

    _SPACE = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
    _MATH = "{http://schemas.openxmlformats.org/officeDocument/2006/math}t"  # the text of an equation
    _TEXT = frozenset(("t", "tab", "br", "cr", "noBreakHyphen", "ptab", "sym", _MATH))
    _SECOND_FORM = "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"  # of a text box
    _READING = "rt"  # of a ruby
    _PROPERTIES = frozenset(("pPr", "rPr", "tblPr", "trPr", "tcPr", "sdtPr"))
    _HIDDEN = _PROPERTIES | {"del", "moveFrom", _READING, _SECOND_FORM}

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
            text = "".join(self._text(kind, part) for kind, part in self._below(child, self._TEXT))
            marks = self._marks(child, text) if marked and text.strip() else ""
            yield marks + " ".join(text.split()) if marks else "\n".join(map(as_text, text.split("\n")))
            for _, box in self._below(child, frozenset(("txbxContent",))):
                yield from self.lines(box, marked=marked)

    def _text(self, kind: str, part: Any) -> str:
        if kind == "br":  # python-docx shows those of lines alone, and not those of pages and columns
            return "\n"
        if kind == "sym":
            return _symbol(part.get(f"{self._SPACE}font"), part.get(f"{self._SPACE}char"))
        return (part.text or "") if kind == self._MATH else str(part)

    def _marks(self, paragraph: Any, text: str) -> str:
        style = self._style(paragraph)
        name = (style.name if style is not None else "") or ""
        if name == "Title":
            self.title = self.title or text.strip()
            return "# "
        level = re.fullmatch(r"Heading (\d)", name)
        return f"{'#' * min(6, int(level[1]))} " if level else ""  # Word has 9 levels, Markdown 6

    def _below(self, element: Any, kinds: frozenset[str]) -> Iterator[tuple[str, Any]]:
        """The outermost elements of ``kinds`` below ``element``, without those in text boxes."""
        for child in element:
            kind = child.tag.removeprefix(self._SPACE) if isinstance(child.tag, str) else ""
            if kind in kinds:
                yield kind, child
            elif kind not in self._HIDDEN and kind != "txbxContent" and not self._vanishes(child):
                yield from self._below(child, kinds)

    def _vanishes(self, element: Any) -> bool:
        """Whether ``element`` is a run of hidden text."""
        mark = element.find(f"{self._SPACE}rPr/{self._SPACE}vanish")
        return mark is not None and mark.get(f"{self._SPACE}val") not in ("0", "false", "off")
