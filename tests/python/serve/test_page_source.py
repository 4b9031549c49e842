"""The search page as it is sent, without a browser: what may run on it, and how texts of documents get into it."""

from __future__ import annotations

import base64
import hashlib
from html.parser import HTMLParser

import pytest
from running_server import RunningServer


class Inline(HTMLParser):
    """The contents of a page's scripts and styles, and the names of all attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.contents: dict[str, list[str]] = {"script": [], "style": []}
        self.attributes: set[str] = set()
        self._tag = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._tag = tag
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        if self._tag in self.contents:
            self.contents[self._tag].append(data)

    def handle_endtag(self, tag: str) -> None:
        self._tag = ""


@pytest.fixture(scope="module")
def page(searching: RunningServer) -> tuple[str, dict[str, list[str]]]:
    """The page, and the sources of each kind that its policy allows."""
    answer = searching.client.get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = [part.split() for part in answer.headers["content-security-policy"].split(";")]
    return answer.text, {kind: sources for kind, *sources in policy}


def test_its_own_script_and_style_may_run_and_nothing_else(page: tuple[str, dict[str, list[str]]]) -> None:
    text, allowed = page
    inline = Inline()
    inline.feed(text)
    for kind, contents in inline.contents.items():
        digests = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in contents]
        assert contents and allowed[f"{kind}-src"] == [f"'sha256-{digest}'" for digest in digests]
    assert allowed["default-src"] == ["'none'"] and allowed["connect-src"] == ["'self'"]
    assert all(allowed[f"{kind}"] == ["'none'"] for kind in ("base-uri", "form-action", "frame-ancestors"))
    # the policy would keep these from working
    assert not {name for name in inline.attributes if name.startswith("on")} | (inline.attributes & {"style"})


def test_texts_of_documents_stay_texts(page: tuple[str, dict[str, list[str]]]) -> None:
    text, _ = page
    for parses in ("innerHTML", "outerHTML", "insertAdjacentHTML", "setHTML", "DOMParser", "document.write"):
        assert parses not in text
    for shown in (
        "match[0]",
        "`${field}: ${value}`",
        "content, title: content",
        "hit.passage ? hit.passage.document : hit.id",
    ):
        assert f"textContent: {shown}" in text
