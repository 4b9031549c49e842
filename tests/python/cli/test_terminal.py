import pytest

from embedkit.cli.terminal import cut, display_width, printable, table


@pytest.mark.parametrize(
    ("text", "width"),
    [
        ("abc", 3),
        ("日本", 4),
        ("e\u0301", 1),
        ("ｆｕｌｌ", 8),
        ("한국어", 6),
        ("😀", 2),
        ("\u200bа", 1),
        ("नमस्ते", 4),
    ],
)
def test_widths(text: str, width: int) -> None:
    assert display_width(text) == width


@pytest.mark.parametrize(
    ("text", "columns", "expected"),
    [
        ("short", 5, "short"),
        ("longer text", 7, "longer…"),
        ("longer text", 8, "longer…"),
        ("日本語", 6, "日本語"),
        ("日本語", 5, "日本…"),
        ("日本語", 4, "日…"),
        ("日本語", 1, "…"),
        ("e\u0301e\u0301e\u0301", 2, "e\u0301…"),
    ],
)
def test_cutting(text: str, columns: int, expected: str) -> None:
    assert cut(text, columns) == expected


def test_printable_text_is_one_line() -> None:
    assert printable("a\nb\t c\x1b[0m\u202e\ud800\x7fé") == "a b c\ufffd[0m\ufffd\ufffd\ufffdé"


def test_columns_are_aligned_by_display_width() -> None:
    rows = [("1", "0.5", "日本", "text"), ("10", "-0.25", "a", "other " * 20)]
    lines = table(("rank", "score", "id", "text"), rows, 40)
    assert lines == [
        "rank  score  id    text",
        "   1    0.5  日本  text",
        "  10  -0.25  a     other other other ot…",
    ]
    assert table(("rank", "score", "id", "text"), rows, None)[-1].endswith("other")
