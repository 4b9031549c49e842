"""The search page, in a real browser.

Needs Playwright and Debian's Chromium: ``pip install playwright && apt-get install chromium``.
Screenshots are kept in the folder ``EMBEDKIT_SCREENSHOTS``, if that is set.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from running_server import RunningServer

playwright = pytest.importorskip(
    "playwright.sync_api", reason="Playwright is not installed: pip install playwright"
)

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: apt-get install chromium")

_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        running = started.chromium.launch(executable_path=CHROMIUM, args=_FLAGS)
        yield running
        running.close()


@pytest.fixture
def page(browser: Any, searching: RunningServer) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1000, "height": 800}, locale="en-US")
    context.set_default_timeout(20_000)
    opened = context.new_page()
    opened.problems = []
    opened.requested = []
    opened.on(
        "console", lambda message: opened.problems.append(message.text) if message.type == "error" else None
    )
    opened.on("pageerror", lambda error: opened.problems.append(str(error)))
    opened.on("request", lambda request: opened.requested.append(request.url))
    opened.goto(searching.url + "/")
    yield opened
    assert opened.problems == []
    assert all(url.startswith((searching.url, "data:")) for url in opened.requested)
    context.close()


def ids(page: Any) -> list[str]:
    found: list[str] = page.locator("#hits li .top b").all_text_contents()
    return found


def search(page: Any, text: str) -> None:
    """Type a query and wait for its hits."""
    with page.expect_response(
        lambda response: "/v1/search" in response.url and text in (response.request.post_data or "")
    ):
        page.locator("#query").fill(text)
    playwright.expect(page.locator("#hits li").first).to_be_visible()


def shoot(page: Any, name: str) -> None:
    folder = os.environ.get("EMBEDKIT_SCREENSHOTS")
    if folder:
        page.screenshot(path=str(Path(folder) / f"{name}.png"))


def test_hits_come_while_typing(page: Any, searching: RunningServer) -> None:
    with page.expect_response(lambda response: '"why is the sky blue"' in (response.request.post_data or "")):
        page.keyboard.type("why is the sky blue", delay=150)  # the field has the focus
    playwright.expect(page.locator("#hits li")).to_have_count(20)
    playwright.expect(page.locator("#status")).to_contain_text("of 200 documents")
    expected = searching.post("/v1/search", {"query": "why is the sky blue", "k": 20}).json()["data"][0][
        "hits"
    ]
    playwright.expect(page.locator("#hits li .top b").first).to_have_text(expected[0]["id"])
    assert ids(page) == [hit["id"] for hit in expected]
    assert page.locator("#hits li .score").first.text_content() == f"{expected[0]['score']:.3f}"
    assert len(page.requested) >= 2
    shoot(page, "hits")


def test_words_are_marked_with_hybrid(page: Any) -> None:
    search(page, "water ice")
    with page.expect_response("**/v1/search") as answer:
        page.locator("#hybrid").uncheck()
    assert '"hybrid":false' in answer.value.request.post_data
    with page.expect_response("**/v1/search") as answer:
        page.locator("#hybrid").check()
    assert "hybrid" not in answer.value.request.post_data
    playwright.expect(page.locator("#hits mark").first).to_be_visible()
    assert {text.lower() for text in page.locator("#hits mark").all_text_contents()} <= {"water", "ice"}
    shoot(page, "hybrid")


def test_keyboard_only(page: Any) -> None:
    page.keyboard.type("cooking lentils")
    playwright.expect(page.locator("#hits li")).to_have_count(20)
    first = ids(page)[0]
    page.keyboard.press("ArrowDown")
    playwright.expect(page.locator("#hits li.on b")).to_have_text(first)
    page.keyboard.press("ArrowDown")
    playwright.expect(page.locator("#hits li.on b")).to_have_text(ids(page)[1])
    page.keyboard.press("ArrowUp")
    with page.expect_response("**/v1/search") as answer:
        page.keyboard.press("Alt+KeyM")
    assert answer.value.request.post_data_json["like"] == first
    playwright.expect(page.locator("#filters .chip")).to_contain_text(f"like {first}")
    assert first not in ids(page)
    page.keyboard.press("Escape")
    playwright.expect(page.locator("#hits li")).to_have_count(0)
    assert page.locator("#query").input_value() == ""
    page.locator("#query").blur()
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "query"


def test_filters(page: Any) -> None:
    search(page, "a machine")
    chip = page.locator("#hits li .chip", has_text="topic: ").first
    topic = chip.text_content().partition(": ")[2]
    with page.expect_response("**/v1/search") as answer:
        chip.click()
    assert answer.value.request.post_data_json["filter"] == {"topic": topic}
    playwright.expect(page.locator("#filters .chip")).to_contain_text(f"topic: {topic}")
    topics = page.locator("#hits li .chip", has_text="topic: ").all_text_contents()
    assert set(topics) == {f"topic: {topic}"}
    shoot(page, "filters")
    page.locator("#where").fill("number < 5")
    playwright.expect(page.locator("#status")).to_contain_text("of 200")
    playwright.expect(page.locator("#hits li").nth(5)).to_have_count(0)
    page.locator("#filters .chip").click()
    playwright.expect(page.locator("#hits li")).to_have_count(5)


def test_integers_that_a_double_would_round(page: Any) -> None:
    search(page, "a machine")
    chip = page.locator("#hits li .chip", has_text="serial: ").first
    serial = int(chip.text_content().partition(": ")[2])
    assert 2**60 <= serial < 2**60 + 200
    with page.expect_response("**/v1/search") as answer:
        chip.click()
    assert f'"serial":{serial}' in answer.value.request.post_data
    playwright.expect(page.locator("#hits li")).to_have_count(1)


def test_a_wrong_filter_is_told(page: Any) -> None:
    search(page, "a machine")
    page.locator("#where").fill("number <")
    playwright.expect(page.locator("#status.bad")).to_contain_text("number <")
    page.problems.clear()  # the browser notes the status 400


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone(browser: Any, searching: RunningServer, scheme: str) -> None:
    context = browser.new_context(
        viewport={"width": 360, "height": 740}, color_scheme=scheme, has_touch=True, is_mobile=True
    )
    opened = context.new_page()
    opened.goto(searching.url + "/#why%20is%20the%20sky%20blue")  # a link to a search
    playwright.expect(opened.locator("#hits li")).to_have_count(20)
    assert opened.evaluate("document.documentElement.scrollWidth") <= 360
    ground = opened.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(251, 251, 253)", "dark": "rgb(21, 23, 27)"}[scheme]
    for chip in opened.locator("#hits li .chip").all()[:5]:
        assert chip.bounding_box()["height"] >= 24
    shoot(opened, f"phone-{scheme}")
    context.close()


def test_text_of_documents_is_never_html(page: Any) -> None:
    page.evaluate(
        "show([{rank: 1, score: 1, id: '<b>x</b>', text: '<img src=x onerror=alert(1)> text', words: ['text', '(?'],"
        " metadata: {'<i>': '<script>'}}])"
    )
    assert page.locator("#hits img, #hits i, #hits script, #hits b b").count() == 0
    assert ids(page) == ["<b>x</b>"]
    playwright.expect(page.locator("#hits mark")).to_have_text("text")


def test_lists_and_objects_are_shown_as_text(page: Any) -> None:
    """They were left out; a filter compares with none, so they are no buttons."""
    page.evaluate(
        "show([{rank: 1, score: 1, id: 'x', text: 'a text', words: [], metadata:"
        " {tags: ['soup', '<b>'], lang: 'en', author: {name: 'Ada', born: 2n ** 60n}, no: null}}])"
    )
    assert page.locator("#hits .chips > *").all_text_contents() == [
        'tags: ["soup","<b>"]',
        "lang: en",
        'author: {"name":"Ada","born":1152921504606846976}',
        "no: null",
        "more like this",
    ]
    assert page.locator("#hits .chip").all_text_contents() == ["lang: en", "no: null"]


@pytest.mark.parametrize(
    ("text", "words", "marks"),
    [
        ("我喜欢苹果汁", ["苹果"], ["苹果"]),
        ("苹果手机和苹果", ["苹果", "苹果手机"], ["苹果手机", "苹果"]),
        ("나는 사과를 먹었다", ["사과"], ["사과"]),
        ("東京タワーへ", ["タワー"], ["タワー"]),
        ("ฉันชอบกินแอปเปิ้ลมาก", ["แอปเปิ้ล"], ["แอปเปิ้ล"]),
        ("snake_case, snakes and Snake", ["snake"], ["snake", "Snake"]),
        ("iPhone手机壳 iPhones", ["iPhone", "手机"], ["iPhone", "手机"]),
    ],
)
def test_marks_in_every_script(page: Any, text: str, words: list[str], marks: list[str]) -> None:
    hit = {"rank": 1, "score": 1, "id": "a", "text": text, "words": words, "metadata": {}}
    page.evaluate("hit => show([hit])", hit)
    assert page.locator("#hits mark").all_text_contents() == marks
    assert page.locator("#hits li p").text_content() == text


def test_a_key_is_asked_for(browser: Any, start: Any, index_folder: Path) -> None:
    with start("--index", str(index_folder), "--api-key", "secret") as running:
        context = browser.new_context()
        opened = context.new_page()
        opened.goto(running.url + "/")
        opened.locator("#query").fill("lentils")
        opened.locator("#key").fill("secret")
        opened.locator("#key").press("Enter")
        playwright.expect(opened.locator("#hits li")).to_have_count(20)
        playwright.expect(opened.locator("#key")).to_be_hidden()
        context.close()
