"""The visible text of an HTML page."""

from __future__ import annotations

import re
from collections import Counter
from html import unescape
from html.parser import HTMLParser
from typing import Any

from .errors import UnreadableError

__all__ = ["as_text", "read_page"]

_SCRIPTS = frozenset(("script", "style"))
_ESCAPED = frozenset(("title", "textarea"))
_UNTAGGED = _SCRIPTS | _ESCAPED | {"xmp"}
"""Elements whose text holds no tags, but character references in those `_ESCAPED`."""
_HIDDEN = _SCRIPTS | frozenset(
    re.findall(
        r"[\w-]+",
        "noscript template svg head nav video audio canvas object iframe noframes datalist annotation annotation-xml",
    )
)
_MARKED = "[hidden]"
"""Stands among the kinds of hidden elements for those that their attributes hide."""
_DISPLAY = re.compile(r"(?:^|;)\s*display\s*:\s*([\w-]+)")
# Blocks that may go without an end tag: a tag that ends an element around them ends nothing else.
_LOOSE = frozenset(re.findall(r"\w+", "p li dt dd option optgroup caption thead tbody tfoot tr td th br hr"))
_CLOSED = frozenset(
    re.findall(
        r"\w+",
        "address article aside blockquote button center details dialog div dl fieldset figcaption figure footer form "
        "h1 h2 h3 h4 h5 h6 header hgroup legend main menu ol pre section select summary table textarea ul",
    )
)
_VOID = frozenset(("br", "hr"))
_VOID_INLINE = frozenset(re.findall(r"\w+", "area base col embed img input link meta param source track wbr"))
_ROWS = frozenset(("thead", "tbody", "tfoot"))
_ENDED_BY = {  # tags before which a hidden block that may go without an end tag has ended
    "p": (_LOOSE | _CLOSED) - {"br"},
    "li": frozenset(("li",)),
    **dict.fromkeys(("dt", "dd"), frozenset(("dt", "dd"))),
    "option": frozenset(("option", "optgroup")),
    "optgroup": frozenset(("optgroup",)),
    **dict.fromkeys(("caption", *_ROWS), _ROWS),
    "tr": _ROWS | {"tr"},
    **dict.fromkeys(("td", "th"), _ROWS | {"tr", "td", "th"}),
}
_READINGS = frozenset(("rt", "rp", "rtc"))
"""What `ruby` writes above its text; each ends without an end tag at the next part or with the ruby."""
_MARKDOWN = re.compile(r"(#{1,6}[ \t])| {0,3}(?:```|~~~)")
_MOST_UNENDED = 20
"""Tags and comments of a page that do not end: after each, all of the page is read again."""


def read_page(content: str) -> tuple[str, dict[str, Any]]:
    """Text of a page, a block per line, headings as Markdown's; its title as metadata.

    Navigation, pictures and the like are hidden, and elements with the attribute ``hidden`` or ``display: none``, but
    not those that the page never closes, which would hide the rest of it, nor where there is nothing else.

    Raises:
        UnreadableError: many tags or comments do not end.
    """
    hidden = _HIDDEN | {_MARKED}
    while True:
        page = _Text(hidden)
        page.read(content)
        text = re.sub(r"\n{3,}", "\n\n", "\n".join(page.lines)).strip("\n")
        shown = page.unclosed() if text else page.unclosed() | (hidden & {"nav", "noframes", _MARKED})
        if not shown:
            break
        hidden -= shown
    title = " ".join("".join(page.title).split())
    return text, {"title": title} if title else {}


def as_text(line: str) -> str:
    """``line``, indented if it would be a heading of Markdown, or begin or end a block of code that hides headings."""
    mark = _MARKDOWN.match(line)
    if mark is None:
        return line
    return f" {line}" if mark[1] else f"    {line}"  # up to three blanks may stand before a fence


class _Text(HTMLParser):
    """The lines of a page, without what is in the elements ``hidden``."""

    def __init__(self, hidden: frozenset[str]) -> None:
        super().__init__(convert_charrefs=True)
        self.lines: list[str] = []
        self.title: list[str] = []
        self._line: list[str] = []
        self._hides = hidden | _READINGS
        # elements that need an end tag, and whether they are hidden; "h" for headings, which any of theirs ends
        self._open: list[tuple[str, bool]] = []
        self._count = Counter[str]()  # of each in them
        self._hidden = 0  # how many of them are hidden
        self._heading: tuple[int, int] | None = None  # level of the open one, and its first line
        self._in_title = False
        self._in_pre = False
        self._unended = set[str]()  # elements that hold no tags, but have no end tag

    def read(self, content: str) -> None:
        """Read all of a page.

        (`close` of html.parser takes a time that grows with the square of what does not end, and `feed` of Python 3.14
        puts off what is shorter than the text before of which it could read nothing.)
        """
        self.rawdata = content
        for _ in range(_MOST_UNENDED):
            self.goahead(False)
            if self.cdata_elem is not None and self.cdata_elem not in _SCRIPTS:
                self._unended.add(self.cdata_elem)  # its text would be the rest of the page
                self.clear_cdata_mode()
                self._in_title = False
                continue
            rest, self.rawdata = self.rawdata, ""
            end = rest.find(">") + 1
            if not end or not rest.startswith("<") or self.cdata_elem is not None:  # no tag follows
                self.handle_data(unescape(rest))
                break
            self.handle_data(unescape(rest[:end]))
            self.rawdata = rest[end:]
        else:
            raise UnreadableError(
                f"the HTML is damaged: more than {_MOST_UNENDED} tags or comments do not end"
            )
        self._end_heading(closed=False)
        self._end_line()

    def unclosed(self) -> frozenset[str]:
        """The kinds of hidden elements that are open."""
        kinds = {name if name in self._hides else _MARKED for name, hides in self._open if hides}
        return frozenset(kinds) - _SCRIPTS - _READINGS

    def set_cdata_mode(self, elem: str, **_: bool) -> None:
        """Read what follows as text up to the end tag of ``elem``, which may have attributes, if it is `_UNTAGGED`.

        (html.parser of earlier Pythons does so for scripts alone, and that of later ones for `iframe` and the like,
        too, in which pages write tags.)
        """
        tagged = elem in self._unended or self._count["svg"]
        if elem in _SCRIPTS or (elem in _UNTAGGED and not tagged):
            super().set_cdata_mode(elem)
            self.interesting = re.compile(rf"</{elem}(?=[\s/>])", re.ASCII | re.IGNORECASE)

    def parse_endtag(self, i: int) -> int:
        """The end of the tag at ``i``, which was handled; -1 if it does not end."""
        if self.cdata_elem is None:
            return super().parse_endtag(i)
        end = self.rawdata.find(">", i) + 1
        if not end:
            return -1
        self.handle_endtag(self.cdata_elem)
        self.clear_cdata_mode()
        return end

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.set_cdata_mode(tag)
        if tag == "title":
            self._in_title = not self._count["svg"] and not self.title
            return
        while self._open and self._open[-1][1] and tag in _ENDED_BY.get(self._open[-1][0], ()):
            self._pop()
        block = tag in _LOOSE or tag in _CLOSED
        if block and tag not in _VOID:
            self._end_ruby()
        part = tag in _READINGS or tag == "rb"
        if part and self._open and self._open[-1][0] in _READINGS:
            self._pop()
        if tag == "body" or (block and self._hidden and self._hidden == self._count["head"]):
            while self._open:  # a head that was not closed
                self._pop()
        level = _level(tag)
        marked = self._is_marked(tag, attrs)
        if not self._hidden and (block or tag in _HIDDEN - self._hides):
            self._end_line()
            if level and not marked:
                if self._open[-1:] == [("h", False)]:
                    self._pop()
                self._end_heading(closed=False)
                self._end_line()
                self._heading = level, len(self.lines)
            if not marked:
                self._in_pre = tag == "pre" or (self._in_pre and not level)  # a heading: pre was not closed
        name = "h" if level else tag
        ended = (
            tag in _CLOSED or tag in _HIDDEN or tag == "ruby" or (tag in _READINGS and self._count["ruby"])
        )
        # within a hidden one of its kind, whose end its own end tag must not be
        within = self._count[name]
        if ended or marked or within:
            hides = marked or name in self._hides
            self._open.append((name, hides))
            self._count[name] += 1
            self._hidden += hides

    def _is_marked(self, tag: str, attrs: list[tuple[str, str | None]]) -> bool:
        """Whether its attributes hide the content of an element."""
        kept = _VOID | _VOID_INLINE | _READINGS | {"html", "body"}
        if _MARKED not in self._hides or tag in kept:
            return False
        given = dict(attrs)
        if given.get("role") == "tabpanel":  # which readers open
            return False
        hidden = "hidden" in given and given["hidden"] != "until-found"
        displays = _DISPLAY.findall((given.get("style") or "").lower())
        return hidden or displays[-1:] == ["none"]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.clear_cdata_mode()
        if tag not in _VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        name = "h" if _level(tag) else tag
        if tag in _LOOSE and tag not in _VOID:
            self._end_ruby()
        if tag == "title":
            self._in_title = False
        elif self._count[name]:
            while self._open[-1][0] != name:  # what was not closed
                self._pop()
            self._pop(closed=True)
        elif (tag in _LOOSE or tag in _CLOSED) and not self._hidden:
            self._end_line()

    def _end_ruby(self) -> None:
        """End what was not closed where a block begins or ends, or its reading would hide the rest."""
        while self._count["ruby"]:
            self._pop()

    def _pop(self, *, closed: bool = False) -> None:
        """End the innermost open element; ``closed``: by its own tag."""
        name, hides = self._open.pop()
        self._count[name] -= 1
        if hides:
            self._hidden -= 1
        elif self._hidden or name == "ruby":
            return
        elif name == "h":
            self._end_heading(closed=closed)
        else:
            if closed:
                self._end_line()
            self._in_pre = self._in_pre and name != "pre"

    def parse_marked_section(self, i: int, report: bool = True) -> int:
        """``<![ endif]>`` and the like of Office: no text, where html.parser of Python 3.11 raises AssertionError."""
        return self.parse_bogus_comment(i)

    def handle_data(self, data: str) -> None:
        if self.cdata_elem in _ESCAPED:
            data = unescape(data)
        if self._in_title:
            self.title.append(data)
        elif not self._hidden:
            first, *others = data.split("\n") if self._in_pre else [data]
            self._line.append(first)
            for line in others:
                self._end_line()
                self._line.append(line)

    def _end_line(self) -> None:
        """Begin a new line, if only an empty one."""
        self.lines.append(as_text(" ".join("".join(self._line).split())))
        self._line.clear()

    def _end_heading(self, *, closed: bool) -> None:
        """Mark the open heading, if there is one: its lines as one, or the first of them if it was not closed."""
        if self._heading is None:
            return
        self._end_line()
        level, first = self._heading
        self._heading = None
        lines = [line for line in self.lines[first:] if line]
        del self.lines[first:]
        if lines:
            count = len(lines) if closed else 1
            heading = " ".join(line.strip() for line in lines[:count])
            self.lines += [f"{'#' * level} {heading}", *lines[count:]]


def _level(tag: str) -> int:
    """Of a heading; 0 for other tags."""
    return int(tag[1]) if re.fullmatch("h[1-6]", tag) else 0
