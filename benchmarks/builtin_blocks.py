"""Headings and paragraphs of the documents from which `builtin_texts.py` makes texts: HTML, CNXML, Markdown, man."""

import gzip
import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path

__all__ = ["READERS", "Block", "blocks_of", "dictionary", "read_text"]

#: Whether it is a heading, and its text.
Block = tuple[bool, str]

_HEADINGS = {"h1", "h2", "h3", "h4", "h5", "title"}
_BLOCKS = {
    "p",
    "li",
    "dd",
    "dt",
    "td",
    "blockquote",
    "para",
    "item",
    "div",
    "section",
    "note",
    "caption",
    "entry",
}
_SKIPPED = {
    *("script", "style", "pre", "nav", "table", "footer", "header", "code-block", "math", "svg", "metadata"),
    *("figure", "m:math", "equation", "code", "glossary-list", "form", "button", "screen", "programlisting"),
}
_INLINE_CODE = "code"
_SPACE = re.compile(r"\s+")


class _Markup(HTMLParser):
    """The blocks of HTML, CNXML or Mallard, which differ only in the names of their elements."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.blocks: list[Block] = []
        self._text: list[str] = []
        self._heading = False
        self._skipped: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag in _SKIPPED and not (tag == _INLINE_CODE and self._text):
            if not self._skipped:
                self._end()
            self._skipped.append(tag)
        elif tag in _HEADINGS or tag in _BLOCKS:
            self._end()
            self._heading = tag in _HEADINGS

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        """An empty element holds nothing."""

    def handle_endtag(self, tag: str) -> None:
        if self._skipped:
            if tag in self._skipped:
                del self._skipped[self._skipped.index(tag) :]
        elif tag in _HEADINGS or tag in _BLOCKS:
            self._end()

    def handle_data(self, data: str) -> None:
        if not self._skipped:
            self._text.append(data)

    def close(self) -> None:
        super().close()
        self._end()

    def _end(self) -> None:
        text = _SPACE.sub(" ", "".join(self._text)).strip()
        if text:
            self.blocks.append((self._heading, text.rstrip("¶#§ ").strip()))
        self._text, self._heading = [], False


def markup(content: str) -> list[Block]:
    """The blocks of a page of HTML, CNXML or Mallard; none where the parser gives up."""
    parser = _Markup()
    body = content.find("<content>")  # CNXML: what comes before repeats the title
    title = re.search(r"<title>([^<]+)</title>", content[:body]) if body > 0 else None
    try:
        parser.feed(content[body:] if body > 0 else content)
        parser.close()
    except (AssertionError, ValueError):
        return []
    return ([(True, _SPACE.sub(" ", title[1]).strip())] if title else []) + parser.blocks


_FENCE = re.compile(r"^(```|~~~).*?^\1[^\n]*$", re.DOTALL | re.MULTILINE)
_FRONT = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)
_LINK = re.compile(r"!?\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])")
_MARKS = re.compile(
    r"\*\*|__|`+|<[^>]{1,200}>|\{[%{].*?[%}]\}|:{1,2}[a-z-]+:|^> ?|^[-*+] |^\d+\. ", re.MULTILINE
)


def markdown(content: str) -> list[Block]:
    """The blocks of a page of Markdown without code and tables."""
    blocks: list[Block] = []
    content = content.replace("\r\n", "\n").removeprefix("\ufeff")
    front = _FRONT.match(content)
    if front:
        for key in ("title", "summary", "description"):
            value = re.search(rf'^{key}: *["\']?(.{{8,300}}?)["\']?$', front[1], re.MULTILINE)
            if value:
                blocks.append((key == "title", value[1]))
        content = content[front.end() :]
    for found in re.split(
        r"\n\s*\n|(?=^#)|(?<=\n)(?=[-*+] |\d+\. )", _FENCE.sub("\n\n", content), flags=re.MULTILINE
    ):
        part = found.strip()
        if not part or part[0] in "|{<!:" or part.startswith(("---", "===", "    ")):
            continue
        heading = re.match(r"(#+) +([^\n]*)(.*)", part, re.DOTALL)
        if heading:
            blocks.append((True, _plain(heading[2]).rstrip("# ")))
            part = heading[3].strip()
        if part:
            blocks.append((False, _plain(part)))
    return [(kind, text) for kind, text in blocks if text]


def _plain(text: str) -> str:
    return _SPACE.sub(" ", _MARKS.sub("", _LINK.sub(r"\1", text))).strip()


_ESCAPES = (
    (re.compile(r"\\f(\[[^\]]*\]|\(..|.)|\\s[-+]?\d|\\[&|^)/,%:]"), ""),
    (re.compile(r"\\\((?:aq|cq|oq)|\\\*\(Aq"), "'"),
    (re.compile(r"\\\((?:lq|rq|dq)|\\\*\([lr]q"), '"'),
    (re.compile(r"\\-|\\\((?:en|em|mi)"), "-"),
    (re.compile(r"\\e"), r"\\"),
    (re.compile(r"\\[ ~0]"), " "),
    (re.compile(r"\\\[[^\]]*\]|\\\(..|\\\*\(..|\\\*."), ""),
)
_REQUEST = re.compile(r"^[.'] *([A-Za-z]+)?(.*)$")
_FONTS = {
    "B",
    "I",
    "BR",
    "RB",
    "IR",
    "RI",
    "BI",
    "IB",
    "SM",
    "SB",
    "Nm",
    "Fl",
    "Ar",
    "Pa",
    "Xr",
    "Em",
    "Ic",
    "Cm",
    "Dq",
}
_NEW = {"PP", "P", "LP", "TP", "IP", "HP", "Pp", "It", "sp", "TQ", "RS", "RE", "Bl", "El", "br"}


def man(content: str) -> list[Block]:
    """The blocks of a manual page's source (man or mdoc), without synopses and examples of code."""
    blocks: list[Block] = []
    text: list[str] = []
    code = False
    section = ""

    def end() -> None:
        if text and section not in ("SYNOPSIS", "SEE ALSO", "AUTHOR", "AUTHORS", "COPYRIGHT"):
            blocks.append((False, _SPACE.sub(" ", " ".join(text)).strip()))
        text.clear()

    for line in content.splitlines():
        request = _REQUEST.match(line) if line[:1] in ".'" else None
        if request:
            name, rest = request[1] or "", _unescaped(request[2].replace('"', "")).strip()
            if name in ("SH", "SS", "Sh", "Ss"):
                end()
                section = rest.upper()
            elif name in ("nf", "EX", "Bd"):
                code = True
            elif name in ("fi", "EE", "Ed"):
                code = False
            elif name in _NEW:
                end()
            elif name in _FONTS and rest and not code:
                text.append(rest)
        elif line and not code and not line.startswith("\t"):
            text.append(_unescaped(line))
    end()
    return [(False, text) for _, text in blocks if text]


def _unescaped(line: str) -> str:
    for pattern, to in _ESCAPES:
        line = pattern.sub(to, line)
    return line


def pod(content: str) -> list[Block]:
    """The blocks of Perl's documentation."""
    blocks: list[Block] = []
    for part in re.split(r"\n\s*\n", content):
        if part.startswith((" ", "\t")) or not part.strip():
            continue
        command = re.match(r"=(head\d|item)\s+(.*)", part, re.DOTALL)
        if part.startswith("=") and not command:
            continue
        text = re.sub(r"[A-Z]<+ ?([^<>]*?) ?>+", r"\1", command[2] if command else part)
        blocks.append((bool(command), _SPACE.sub(" ", text).strip()))
    return blocks


def plain(content: str) -> list[Block]:
    """Paragraphs of plain text or reStructuredText; underlined lines are headings."""
    blocks: list[Block] = []
    for part in re.split(r"\n\s*\n", content):
        lines = part.split("\n")
        while lines and re.fullmatch(r"\s*([=\-~^\"'*+#`])\1{2,}\s*", lines[0]):
            lines.pop(0)
        if len(lines) > 1 and re.fullmatch(r"([=\-~^\"'*+#`])\1{2,}\s*", lines[1]):
            blocks.append((True, _rst(lines[0])))
            lines = lines[2:]
        if not lines or lines[0].startswith(("..", "    ", "\t", ":", "|", ">>>", "$")):
            continue
        text = _rst(" ".join(lines))
        if text:
            blocks.append((False, text))
    return blocks


def _rst(text: str) -> str:
    text = re.sub(r":[a-z:]+:`~?([^`<]*?)(?: <[^`>]*>)?`", r"\1", text)
    return (
        _SPACE.sub(" ", re.sub(r"`+_*|\*\*|(?<= )\*(?=\w)|(?<=\w)\*(?=\W)", "", text))
        .strip("-* ")
        .rstrip(":")
    )


def dictionary(content: str) -> list[list[Block]]:
    """The entries of a dict file: each an unindented head word and its definition."""
    entries = re.split(r"\n(?=\S)", content)
    found = []
    for entry in entries:
        head, _, rest = entry.partition("\n")
        text = _SPACE.sub(" ", re.sub(r"[{}]|<[^>]*>|\[[^\]]*\]", "", rest)).strip()
        if text and len(head) < 60:
            name = re.sub(r"\s*[\\(/].*", "", head).strip()
            found.append([(False, f"{name}: {text}")])
    return found


READERS: dict[str, Callable[[str], list[Block]]] = {
    ".html": markup,
    ".xhtml": markup,
    ".cnxml": markup,
    ".page": markup,
    ".md": markdown,
    ".pod": pod,
    ".rst": plain,
    ".txt": plain,
}


def read_text(path: Path) -> str:
    """A file's text, unpacked if its name ends in .gz."""
    raw = path.read_bytes()
    return (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8", "replace")


def blocks_of(name: str, content: str) -> list[Block]:
    """The blocks of a file by its name; none if it is of no known kind."""
    reader = READERS.get(Path(name.removesuffix(".gz").removesuffix(".txt") or name).suffix)
    reader = reader or READERS.get(Path(name.removesuffix(".gz")).suffix)
    if reader is None and re.search(r"\.[1-8][a-z]*(\.gz)?$", name):
        reader = man
    return reader(content) if reader else []


def joined(blocks: list[Block]) -> Iterator[str]:
    """For inspection: a line a block."""
    for heading, text in blocks:
        yield ("# " if heading else "") + text
