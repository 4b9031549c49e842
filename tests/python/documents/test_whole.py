"""Markdown and HTML as people and editors write them."""

from __future__ import annotations

import time
from typing import Any

import pytest

from embedkit.documents import Document
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
        ("<pre>a\nb<h2>not closed</h2>c\nd", ("a\nb\n\n## not closed\nc d", {})),
    ],
)
def test_html(page: str, expected: tuple[str, dict[str, Any]]) -> None:
    assert read_whole("html", page.encode()) == expected


@pytest.mark.parametrize(
    ("line", "title"),
    [
        ("# A title", "A title"),
        ("## A title ##  ", "A title"),
        ("# C#", "C"),
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


def test_front_matter_that_holds_itself() -> None:
    with pytest.raises(UnreadableError, match="front matter is not valid YAML"):
        read_whole("md", b"---\na: &a [*a]\n---\ntext")


def test_long_runs_take_no_time() -> None:
    begin = time.perf_counter()
    read_whole("md", b"# a" + b" " * 100_000 + b"b")
    text = "a" + "." * 100_000 + "b\n# c" + " " * 100_000 + "d"
    assert list(_END.finditer(text)) and _HEADING.match(text[text.index("#") :])
    assert time.perf_counter() - begin < 5
