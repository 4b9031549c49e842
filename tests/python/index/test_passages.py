"""Passages: where texts are cut, and an index of them."""

from __future__ import annotations

import random
import re
import subprocess
import sys
import unicodedata
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_encoder import Counting, FakeEncoder
from peak_memory import PEAK_KIB, needs_peak

from embedkit import Encoder
from embedkit.cli.main import main
from embedkit.documents.document import EncodedDocument
from embedkit.documents.passages import PassageCutter, Passages
from embedkit.index import Document, Index, InputError, ModelMismatchError
from embedkit.index.build.resume import resumable_rows
from embedkit.index.evaluate import Judgments, Search, evaluate
from embedkit.index.picture import make_picture
from embedkit.index.picture.plot import title_of
from embedkit.index.search.prepared import Found, PreparedSearch


class Tokenizing(FakeEncoder):
    """A token per word, and two special ones."""

    max_seq_length = 64

    def tokenize(self, texts: Iterable[str]) -> dict[str, list[list[int]]]:
        return {"input_ids": [[0] * (2 + len(text.split())) for text in texts]}


class Bytes(Tokenizing):
    """A token per byte, white space too, truncated to the model's maximum."""

    def tokenize(self, texts: Iterable[str]) -> dict[str, list[list[int]]]:
        return {"input_ids": [[0] * min(2 + len(text.encode()), self.max_seq_length) for text in texts]}


class Characters(Tokenizing):
    """A token per character."""

    def tokenize(self, texts: Iterable[str]) -> dict[str, list[list[int]]]:
        return {"input_ids": [[0] * (2 + len(text)) for text in texts]}


class Blanks(Tokenizing):
    """As byte-level BPE: a word and the blank before it are up to three tokens, and more or fewer than the word."""

    def tokenize(self, texts: Iterable[str]) -> dict[str, list[list[int]]]:
        found = []
        for text in texts:
            pieces = [zlib.crc32(piece.encode()) for piece in re.findall(r" ?\S+|\s+(?!\S)|\s", text)]
            ids = [piece for piece in pieces for _ in range(1 + piece % 3)]
            found.append([0, *ids[: self.max_seq_length - 2], 0])
        return {"input_ids": found}


def cut(text: str, passages: str, encoder: Tokenizing | None = None) -> list[Document]:
    return PassageCutter(encoder or Tokenizing(), Passages.of(passages) or Passages(8)).cut(
        Document(text, "a")
    )


def test_passages_end_at_sentences_and_headings() -> None:
    text = (
        "# Top\n\nOne two three four. Five six seven! Eight nine.\n\n"
        "## Below\nTen eleven 'twelve.' Thirteen fourteen fifteen sixteen seventeen.\n"
    )
    found = cut(text, "8")
    assert [piece.text for piece in found] == [
        "# Top\n\nOne two three four.",
        "Five six seven! Eight nine.",
        "## Below\nTen eleven 'twelve.'",
        "Thirteen fourteen fifteen sixteen seventeen.",
    ]
    places = [dict(piece.metadata or {})["passage"] for piece in found]
    assert [place["heading"] for place in places] == ["Top", "Top", "Top > Below", "Top > Below"]
    assert [text[place["begin"] : place["end"]] for place in places] == [piece.text for piece in found]
    assert [(place["number"], place["count"]) for place in places] == [(n, 4) for n in (1, 2, 3, 4)]


@pytest.mark.parametrize(
    ("between", "sentences"),
    [
        (" ", ["वह कल दिल्ली गया था।", "उसने कहा, 'हाँ, सुनो।'", "मौसम बहुत अच्छा था॥"]),
        ("", ["वह कल दिल्ली गया था।", "मौसम बहुत अच्छा था।"]),
        (" ", ["وہ کل لاہور گیا۔", "کیا تم آؤ گے؟", "ہاں بھئی ضرور۔"]),
        (" ", ["Սա մի գիրք է։", "Այո, գիրք է։"]),
        (" ", ["ሰላም ነው አሉ።", "እንዴት ነህ አሉ፧", "ደህና ነኝ አሉ፨"]),
        ("", ["ထမင်း၊ ဟင်း စားပြီးပြီ။", "ကျွန်တော် ထမင်းစားသည်။"]),
        (" ", ["គាត់ទៅផ្ទះហើយ។", "«គាត់ទៅផ្ទះ។»", "គាត់ទៅផ្ទះហើយ៕"]),
        ("", ["彼は明日来ると言った｡", "｢はい、また明日ね｡｣", "値は３．５である．", "“是的，我们明天来。”"]),
        (" ", ["Sie fragte: „Wirklich?“", "„Ja, ja!“, sagte er.", "„Ich komme morgen.“"]),
        (" ", ["She said to him.", "“Yes, I know that.”", "“No,” he said."]),
        (
            " ",
            [
                "Elle dit : « Oui. »",
                "« Vraiment\u00a0?\u00a0»",
                "« Non\u202f!\u202f», dit-il.",
                "‹ Ah, enfin ! ›",
            ],
        ),
        (" ", ["Er kam wieder heim.", "»Ja, ja und nein«, sagte er."]),
    ],
)
def test_sentences_end_in_other_scripts_and_quotes(between: str, sentences: list[str]) -> None:
    most = max(map(len, sentences))
    assert [piece.text for piece in cut(between.join(sentences), str(most), Characters())] == sentences


@pytest.mark.parametrize(
    "cluster",
    ["ที่นี่", "ပြီး", "ស្ត្រី", "か\u3099", "e\u0301\u0323", "👨\u200d👩\u200d👧", "❤\ufe0f", "1\ufe0f\u20e3"],
)
@pytest.mark.parametrize("encoder", [Characters(), Bytes()], ids=["step", "halves"])
def test_letters_keep_their_marks(cluster: str, encoder: Tokenizing) -> None:
    text = cluster * 90
    found = [piece.text for piece in cut(text, "59", encoder)]
    assert "".join(found) == text and len(found) > len(text) // 60
    for piece in found:
        assert unicodedata.category(piece[0])[0] != "M" and piece[0] != "\u200d"
        assert piece[-1] not in "\u200d\u1039\u17d2"


def test_a_letter_of_many_marks_is_cut() -> None:
    text = "e" + "\u0301" * 500
    assert "".join(piece.text for piece in cut(text, "60", Characters())) == text


@pytest.mark.parametrize("passages", ["8", "8:4", "20:10", "62"])
def test_nothing_is_lost_and_nothing_is_too_long(passages: str) -> None:
    choose = random.Random(passages)
    for _ in range(200):
        words = [
            choose.choice(["word", "other.", "end!", "# ", "\n", "\n\n## Head\n", "x" * 300, "漢字。", " "])
            for _ in range(choose.randrange(200))
        ]
        text = " ".join(words)
        covered = 0
        for piece in cut(text, passages):
            place = dict(piece.metadata or {})["passage"]
            assert not text[covered : place["begin"]].strip()
            assert place["end"] > covered or not text.strip()
            covered = place["end"]
            assert len(piece.text.split()) <= int(passages.split(":", maxsplit=1)[0])
        assert not text[covered:].strip()


@pytest.mark.parametrize("passages", ["8", "30:15", "62", "62:31"])
def test_no_passage_is_too_long_for_tokens_of_bytes(passages: str) -> None:
    choose = random.Random(passages)
    most = int(passages.split(":", maxsplit=1)[0])
    for _ in range(30):
        words = ["a", "word.", "\n\n", "\n    ", "# Head\n", "x" * 100, "天气很好。", "漢" * 70, " "]
        text = "".join(choose.choice(words) for _ in range(choose.randrange(60)))
        covered = 0
        for piece in cut(text, passages, Bytes()):
            place = dict(piece.metadata or {})["passage"]
            assert not text[covered : place["begin"]].strip()
            covered = place["end"]
            assert len(piece.text.encode()) <= most or not piece.text.strip()
        assert not text[covered:].strip()


@pytest.mark.parametrize("passages", ["8", "30:15", "62:31"])
def test_no_passage_is_too_long_where_tokens_hold_the_blank_before_a_word(passages: str) -> None:
    choose = random.Random(passages)
    most = int(passages.split(":", maxsplit=1)[0])
    for _ in range(100):
        words = [
            f"w{choose.randrange(99)}{choose.choice(['', '', '', '.', '.', chr(10), '  '])}"
            for _ in range(200)
        ]
        found = cut(" ".join(words), passages, Blanks())
        sizes = [len(ids) - 2 for ids in Blanks().tokenize(piece.text for piece in found)["input_ids"]]
        assert max(sizes) <= most < 2 * sum(sizes) / len(sizes)


def test_pieces_of_a_word_may_have_more_tokens_together() -> None:
    encoder = Encoder()
    choose = random.Random(1)
    for most in (8, 10, 40):
        words = [
            choose.choice(["word", "end!", "strawberry" * 8, "abc123def456" * 6, "漢字。"])
            for _ in range(200)
        ]
        for piece in PassageCutter(encoder, Passages(most, most // 2)).cut(Document(" ".join(words), "a")):
            (ids,) = encoder.tokenize([piece.text])["input_ids"]
            assert len(ids) - 2 <= most, piece.text


@needs_peak
@pytest.mark.parametrize("sentence", ["word thing ", "Some words. "])
def test_a_long_text_is_cut_in_little_memory(sentence: str) -> None:
    code = (
        "from embedkit import Encoder\nfrom embedkit.documents import Document\n"
        "from embedkit.documents.passages import PassageCutter, Passages\n"
        "cutter = PassageCutter(Encoder(), Passages(120, 30))\n"
        f"text = {sentence!r} * 500_000\n"
        f"before = {PEAK_KIB}\n"
        "cutter.cut(Document(text, 'a'))\n"
        f"print(({PEAK_KIB} - before) * 1024 / len(text))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 25


def test_long_sentences_are_cut_where_a_passage_takes_all_of_the_model() -> None:
    # the tokenizer counts no more tokens than that
    sizes = [len(piece.text) for piece in cut("word thing " * 50, "62", Bytes())]
    assert len(sizes) == 10 and max(sizes) <= 62


def test_overlap_repeats_whole_sentences() -> None:
    text = " ".join(f"a{n} b{n} c{n}." for n in range(10))
    found = [piece.text for piece in cut(text, "9:3")]
    assert found[0] == "a0 b0 c0. a1 b1 c1. a2 b2 c2."
    assert found[1].startswith("a2 b2 c2. a3 b3 c3.")


@pytest.mark.parametrize("value", ["7", "16:9", "x", "1:2:3", 3.5, True])
def test_wrong_passages(value: Any) -> None:
    with pytest.raises(ValueError, match=r"passages|overlap|TOKENS"):
        Passages.of(value)


def test_passages_that_do_not_fit_the_model() -> None:
    with pytest.raises(
        ValueError, match=r"do not fit into the model's maximum of 64, .* passages of at most 62"
    ):
        PassageCutter(Tokenizing(), Passages(63))
    for length, remedy in (
        (128, "take 2; raise --max-length .* of at most 126"),
        (None, "take 2; take another model, .* of at most 510"),
    ):
        with Encoder(max_length=length) as encoder, pytest.raises(ValueError, match=f"{remedy}$"):
            PassageCutter(encoder, Passages(600 if length is None else 200))
    with pytest.raises(TypeError, match="FakeEncoder has no tokenize"):
        PassageCutter(FakeEncoder(), Passages(8))


def test_a_new_model_that_cannot_read_the_passages_is_refused(index: Index) -> None:
    class Short(Tokenizing):
        max_seq_length = 16

    before = index.generation.manifest
    with pytest.raises(
        ValueError,
        match=r"index: the new model does not fit .* passages of 20 .* raise --max-length .*, take another",
    ):
        index.reembed(Short("short"))
    index.refresh()
    assert index.generation.manifest == before
    assert index.upsert([Document("Another short text.", "new")]).documents == 1


def sentences(document: int, count: int) -> list[str]:
    return [f"Sentence d{document}s{n} tells of x{document * 1000 + n} and y{n}." for n in range(count)]


@pytest.fixture
def index(tmp_path: Path) -> Index:
    documents = [
        Document(" ".join(sentences(number, 12)), f"d{number}", {"n": number}) for number in range(5)
    ]
    return Index.build(
        tmp_path / "index", [*documents, Document("Short.", "d1#1")], Tokenizing(), passages="20:7"
    )


def test_hits_are_passages_with_their_place(index: Index) -> None:
    (hits,) = index.search(sentences(3, 12)[9], k=3)
    best = hits[0]
    assert best.passage is not None
    assert (best.document, best.passage.document, best.metadata) == ("d3", "d3", {"n": 3})
    text = " ".join(sentences(3, 12))
    assert text[best.passage.begin : best.passage.end] == best.text
    assert best.passage.before is not None
    assert sentences(3, 12)[9] in best.text
    (before,) = index.get(best.passage.before)
    assert before.metadata["passage"]["number"] == best.passage.number - 1
    assert index.info()["whole_documents"] == 6
    assert index.info()["passages"] == "20:7"


def test_the_best_passage_of_each_document(index: Index) -> None:
    (hits,) = index.search("Sentence tells of and", k=6, per_document=True)
    assert sorted(hit.document for hit in hits) == ["d0", "d1", "d1#1", "d2", "d3", "d4"]
    everything = index.search("Sentence tells of and", k=len(index))[0]
    for hit in hits:
        assert hit.score == max(other.score for other in everything if other.document == hit.document)
    (stream,) = index.search_stream([["Sentence tells of and"]], k=6, per_document=True)
    assert [hit.id for hit in stream[0]] == [hit.id for hit in hits]
    (few,) = index.search("Sentence", k=6, where="n = 2", per_document=True)
    assert [hit.document for hit in few] == ["d2"]


def test_no_deeper_search_once_every_document_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    depths: list[int] = []
    run = PreparedSearch.run

    def watched(search: PreparedSearch, *arguments: Any) -> Found:
        depths.append(search.k)
        return run(search, *arguments)

    monkeypatch.setattr(PreparedSearch, "run", watched)
    documents = [Document(" ".join(sentences(number, 60)), f"d{number}") for number in range(3)]
    with Index.build(tmp_path / "index", documents, Tokenizing(), passages="10:0") as built:
        (hits,) = built.search("Sentence tells of and", k=9, per_document=True)
        assert {hit.document for hit in hits} == {"d0", "d1", "d2"} and len(hits) == 3
        assert depths == [36] and len(built) > 100


def test_a_document_is_replaced_and_deleted_with_all_its_passages(index: Index) -> None:
    before = len(index)
    of_one = len(index.get("d1"))
    assert of_one > 3
    written = index.upsert([Document(" ".join(sentences(1, 3)), "d1", {"n": 1})])
    assert written.replaced == of_one
    assert len(index) == before - of_one + len(index.get("d1"))
    assert [found.text for found in index.get("d1#1#1")] == ["Short."]
    assert written.documents > 1
    assert index.delete("d1") == 1
    assert index.get("d1") == []
    assert index.get("d1#1") != []
    with pytest.raises(InputError, match="no document with the id 'd1'"):
        index.delete("d1")


def test_a_condition_on_one_passage_deletes_its_whole_document(index: Index) -> None:
    before, of_one = len(index), len(index.get("d2"))
    assert index.delete(where="text like '%d2s4 %' or text like '%d1#1%'") == 1
    assert index.get("d2") == [] and len(index) == before - of_one
    assert index.delete([index.get("d3")[1].id, index.get("d3")[2].id, "d1#1"]) == 2
    assert index.get("d3") == index.get("d1#1#1") == [] and len(index.get("d1")) == of_one
    index.add([Document("short text", "d2")])
    assert [found.id for found in index.get("d2")] == ["d2#1"]
    index.verify()


def test_the_id_in_a_condition_is_that_of_the_document(index: Index) -> None:
    def found(where: str) -> set[str]:
        return {hit.document for hit in index.search("Sentence", k=99, where=where)[0]}

    assert found("id = 'd2'") == {"d2"}
    assert found("id in ('d1#1', 'd4')") == {"d1#1", "d4"}
    assert found("id = 'd1'") == {"d1"}
    assert len(index.search("Sentence", k=99, where="id = 'd2'")[0]) == len(index.get("d2"))
    assert index.delete(where="id like 'd%' and id != 'd3'") == 5
    assert found("id is not null") == {"d3"}


def test_a_document_is_not_added_beside_its_own_passages(index: Index) -> None:
    before = len(index)
    with pytest.raises(InputError, match="the id 'd1' is already in the index; upsert"):
        index.add([Document("short text", "d1")])
    skipped: list[InputError] = []
    index.add([Document("short text", "d1"), Document("another", "new")], on_error=skipped.append)
    assert len(skipped) == 1 and len(index) == before + 1


def test_the_last_of_two_documents_with_one_id_wins(index: Index) -> None:
    first, last = " ".join(sentences(7, 12)), " ".join(sentences(8, 2))
    index.upsert([Document(first, "new"), Document(last, "new")])
    assert " ".join(found.text for found in index.get("new")).count("d8s") == 2
    assert not any("d7s" in found.text for found in index.get("new"))
    index.verify()


def test_only_changed_passages_are_encoded(index: Index) -> None:
    class CountingTokens(Counting, Tokenizing):
        pass

    encoder = CountingTokens()
    with Index.open(index.path, encoder) as other:
        text = " ".join(sentences(2, 12))
        assert other.upsert([Document(text, "d2", {"n": 2})]).unchanged == 1
        assert encoder.texts == 0
        other.upsert([Document(text, "d2", {"n": 99})])
        assert encoder.texts == 0
        assert {hit.document for hit in other.search("Sentence", k=99, where="n = 99")[0]} == {"d2"}
        other.upsert([Document(text.replace("d2s11", "changed"), "d2", {"n": 2})])
        assert encoder.texts == 1


def test_a_field_named_passage_is_refused(index: Index) -> None:
    with pytest.raises(InputError, match="the field 'passage' is taken"):
        index.upsert([Document("text", "x", {"passage": 1})])


def test_a_passage_three_quarters_in_is_found(tmp_path: Path) -> None:
    """Of some 7,000 sentences of 21 long documents every tenth is asked for; 98 % find their own passage first."""
    choose = random.Random(5)
    topics = "harbor violin glacier pepper engine orchid castle penguin copper meadow lantern".split()  # noqa: SIM905
    verbs = "paints carries follows remembers sells hides repairs counts breaks washes".split()  # noqa: SIM905
    places = ["under the bridge", "in the cellar", "near a school", "at noon", "on the roof", "by the river"]
    documents, asked = [], []
    for number in range(21):
        lines = [
            f"The {choose.choice(topics)} of {choose.randrange(10**6)} {choose.choice(verbs)} "
            f"{choose.randrange(10**6)} {choose.choice(topics)}s {choose.choice(places)}."
            for _ in range(345)
        ]
        documents.append(Document(" ".join(lines), f"doc{number}"))
        asked += [(f"doc{number}", line) for line in lines[::10]]
    assert all(len(document.text.split()) >= 3000 for document in documents)
    with Index.build(tmp_path / "index", documents, Encoder(), passages="24:0") as built:
        found = built.search([line for _, line in asked], k=1)
        assert built.info()["truncated"] == 0
    right = sum(
        hits[0].document == document and line in hits[0].text
        for hits, (document, line) in zip(found, asked, strict=True)
    )
    assert right >= 0.98 * len(asked), f"{right} of {len(asked)}"


def test_truncated_texts_are_counted(tmp_path: Path) -> None:
    encoder = Encoder(max_length=16)
    texts = ["word " * 100, "short", "other " * 50]
    with (
        pytest.warns(UserWarning, match="truncated"),
        Index.build(tmp_path / "index", texts, encoder) as built,
    ):
        assert built.info()["truncated"] == 2
        assert built.info()["max_length"] == 16
    with Index.open(tmp_path / "index") as again:
        assert again.encoder.max_seq_length == 16  # type: ignore[attr-defined]
    with (
        Index.open(tmp_path / "index", Encoder()) as other,
        pytest.raises(ModelMismatchError, match="max_length=16"),
    ):
        other.add([Document("new", "x")])


def test_long_texts_are_read_as_before_by_another_model(tmp_path: Path) -> None:
    encoder = Encoder(max_length=16, on_overflow="window")
    path = str(tmp_path / "index")

    def lengths() -> tuple[int | None, str | None]:
        with Index.open(path) as index:
            return index.info()["max_length"], index.info()["on_overflow"]

    Index.build(path, ["word " * 100, "short"], encoder).close()
    assert main(["reembed", path]) == 0 and lengths() == (16, "window")
    with Index.open(path) as index:
        index.reembed(None)
        before = index.generation.vectors(index.generation.living_rows())
    assert lengths() == (16, "window")
    assert main(["reembed", path, "--max-length", "24", "--on-overflow", "truncate"]) == 0
    assert lengths() == (24, None)
    with Index.open(path) as index:
        index.reembed(encoder)
        np.testing.assert_allclose(
            index.generation.vectors(index.generation.living_rows()), before, atol=1e-6
        )


@pytest.mark.parametrize(("dedup", "left"), [("exact", 4), ("near:0.9", 3)])
def test_repeated_texts_are_left_out(tmp_path: Path, dedup: str, left: int) -> None:
    near = "alpha beta gamma delta epsilon zeta eta theta iota kappa"
    texts = [near, "something else", near, f"{near} lambda", "something else", "third one here"]
    with Index.build(tmp_path / "index", texts, FakeEncoder(), dedup=dedup) as built:
        assert len(built) == left
        assert built.get("0")[0].text == near
        built.verify(sample=9)
    with pytest.raises(ValueError, match="dedup must be"):
        Index.build(tmp_path / "other", texts, FakeEncoder(), dedup="near:2")


@pytest.mark.parametrize("text", ["", "a text"])
@pytest.mark.parametrize("dedup", ["exact", "near:0.99"])
def test_texts_with_other_vectors_are_not_repeated(tmp_path: Path, dedup: str, text: str) -> None:
    vectors = np.random.default_rng(0).standard_normal((5, 32))
    documents = [Document(text, f"d{row}", vector=vectors[row % 5]) for row in range(6)]
    with Index.build(tmp_path / "index", documents, FakeEncoder(), dedup=dedup) as built:
        assert [document.id for document in built] == [f"d{row}" for row in range(5)]


def test_a_text_with_another_vector_of_the_model_is_repeated(tmp_path: Path) -> None:
    """Of Ray: texts that were encoded in batches of other lengths differ in the last bits."""
    vector = np.asarray(FakeEncoder().encode_document(["one"])[0], np.float32)
    vectors = (vector, np.nextafter(vector, np.float32(1)))
    documents = [EncodedDocument("one", f"d{row}", vector=each) for row, each in enumerate(vectors)]
    with Index.build(tmp_path / "index", documents, FakeEncoder(), dedup="exact") as built:
        assert [document.id for document in built] == ["d0"]


def test_a_refused_document_repeats_nothing(tmp_path: Path) -> None:
    documents = [Document("one", "a"), Document("two", "a"), Document("two", "b"), Document("one", "c")]
    with Index.build(tmp_path / "index", documents, FakeEncoder(), dedup="exact", on_error="skip") as built:
        assert [(document.id, document.text) for document in built] == [("a", "one"), ("b", "two")]


@pytest.mark.parametrize("dedup", [None, "exact"])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("Three four five six seven eight nine. One two.", "Three four five six seven eight nine. Ten."),
        ("One two. Three four five six seven eight nine.", "Ten eleven."),
    ],
)
def test_an_id_is_of_one_document_whichever_passages_are_left_out(
    tmp_path: Path, dedup: str | None, first: str, second: str
) -> None:
    path = tmp_path / "index"
    others = [Document(f"Number {row}.", f"d{row}") for row in range(2500)]
    twice = [Document("One two.", "o"), Document(first, "a"), *others, Document(second, "a")]
    with pytest.raises(InputError, match="the id 'a' was used before"):
        Index.build(path, twice, Tokenizing(), passages=8, dedup=dedup)
    assert resumable_rows(path)
    with pytest.raises(InputError, match=r"2502 .*the id 'a' was used before"):
        Index.build(path, twice, Tokenizing(), passages=8, dedup=dedup)
    with Index.build(path, twice[:-1], Tokenizing(), passages=8, dedup=dedup) as index:
        assert len(index.generation.places(["a"])["a"]) == (2 if dedup is None else 1)


def test_documents_of_two_indexes_have_one_id_whichever_passages_are_left_out(tmp_path: Path) -> None:
    first = [Document("One two.", "r"), Document("One two. Three four five six seven eight nine.", "a")]
    Index.build(tmp_path / "first", first, Tokenizing(), passages=8, dedup="exact").close()
    Index.build(tmp_path / "other", [Document("Ten.", "a")], Tokenizing(), passages=8).close()
    with Index.open(tmp_path / "first", Tokenizing()) as index:
        assert [passage.id for passage in index] == ["r#1", "a#2"]
    with pytest.raises(InputError, match=r"the id 'a' is in .*first and in .*other"):
        Index.merge(tmp_path / "both", [tmp_path / "first", tmp_path / "other"])


def test_near_duplicates_are_of_cosines(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="compares cosines, and the metric dot"):
        Index.build(tmp_path / "index", ["a"], FakeEncoder(), dedup="near:0.9", metric="dot")


@pytest.mark.parametrize("spooled", [True, False])
@pytest.mark.parametrize("factory", ["SQ8", "SQ6"])
def test_near_duplicates_are_those_of_the_vectors_and_not_of_their_codes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factory: str, spooled: bool
) -> None:
    if not spooled:  # as after a build that was killed while it was published
        monkeypatch.setattr("embedkit.index.build.duplicates.SPOOL_FILE", "none")
    first, other = np.random.default_rng(0).standard_normal((2, 200, 64))
    other -= (other * first).sum(1, keepdims=True) / (first * first).sum(1, keepdims=True) * first
    first /= np.linalg.norm(first, axis=1, keepdims=True)
    other /= np.linalg.norm(other, axis=1, keepdims=True)
    below = 0.9989 * first + np.sqrt(1 - 0.9989**2) * other
    documents = [
        Document(f"{name} {row}", f"{name}{row}", vector=vector)
        for name, vectors in (("first", first), ("below", below), ("again", first))
        for row, vector in enumerate(vectors)
    ]
    with Index.build(
        tmp_path / "index",
        documents if spooled else [one for one in documents if one.id[:5] != "below"],
        FakeEncoder(truncate_dim=64),
        factory=factory,
        kept="none",
        dedup="near:0.999",
    ) as built:
        assert {document.id[:5] for document in built} == ({"first", "below"} if spooled else {"first"})
        assert len(built) == (400 if spooled else 200)


def test_another_model_encodes_everything_again(index: Index) -> None:
    index.delete("d4")
    other = Tokenizing("other", truncate_dim=48)
    before = [hit.id for hit in index.search("Sentence", k=len(index))[0]]
    with Index.open(index.path, Tokenizing()) as reader:
        written = index.reembed(other)
        assert written.documents == len(before) == len(index)
        assert [hit.id for hit in reader.search("Sentence", k=len(index))[0]] == before
    assert (index.dimension, index.info()["model"], index.info()["passages"]) == (48, "other", "20:7")
    assert sorted(hit.id for hit in index.search("Sentence", k=99)[0]) == sorted(before)
    index.verify(sample=20)
    index.upsert([Document("New text.", "new")])


def test_an_id_is_of_a_document_before_it_is_of_a_passage(index: Index) -> None:
    assert [found.text for found in index.get("d1#1")] == ["Short."]
    passages = len(index.get("d1"))
    assert index.delete("d1#1") == 1
    assert len(index.get("d1")) == passages
    assert index.delete(["d1", "d1#2"]) == 1  # no document counts twice


def test_judgments_of_documents(index: Index) -> None:
    judgments = Judgments([sentences(3, 12)[4], sentences(2, 12)[0]], [{"d3": 1.0}, {"d2": 1.0}])
    (vectors,) = evaluate(index, judgments, [Search("vectors", hybrid=False)], ks=(1, 5))
    assert vectors.recall == {1: 1.0, 5: 1.0}
    (passage,) = index.search(sentences(3, 12)[4], k=1)
    judgments = Judgments([sentences(3, 12)[4]], [{passage[0].id: 1.0}])
    assert evaluate(index, judgments, [Search("vectors", hybrid=False)])[0].mrr == 1.0


def test_merging_with_an_index_that_is_not_cut_says_so(tmp_path: Path) -> None:
    Index.build(tmp_path / "whole", [Document("A text.", "a")], Tokenizing()).close()
    Index.build(tmp_path / "cut", [Document("Another text.", "b")], Tokenizing(), passages="10:2").close()
    told = r"cut is cut into passages \(10:2\), and .*whole is not cut into passages; they cannot be merged"
    with pytest.raises(ModelMismatchError, match=told):
        Index.merge(tmp_path / "both", [tmp_path / "whole", tmp_path / "cut"])


def test_near_duplicates_are_found_in_every_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embedkit.index.build.duplicates._AT_ONCE", 2)
    near = "alpha beta gamma delta epsilon zeta eta theta iota kappa"
    texts = [near, "something else", "third one here", f"{near} lambda", "a fourth text", "here one third"]
    with Index.build(tmp_path / "index", texts, FakeEncoder(), dedup="near:0.9") as built:
        assert [document.id for document in built] == ["0", "1", "2", "4"]


def test_passages_of_many_documents_are_replaced_and_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for constant in ("publish._IDS_AT_ONCE", "change._AT_ONCE"):
        monkeypatch.setattr(f"embedkit.index.build.{constant}", 4)

    def documents(word: str, numbers: range) -> list[Document]:
        return [Document(f"{word} {n}. " * 12, f"d{n}", {"n": n}) for n in numbers]

    with Index.build(
        tmp_path / "index", documents("Before", range(20)), Tokenizing(), passages="8:0"
    ) as index:
        index.upsert(documents("After", range(5, 20)))
        assert {one.id.partition("#")[0] for one in index if "Before" in one.text} == {
            f"d{n}" for n in range(5)
        }
        index.verify()
        assert index.delete(where="n < 18") == 18
        assert {one.id.partition("#")[0] for one in index} == {"d18", "d19"}


@pytest.mark.parametrize("words", [1024, 2500])
def test_a_sentence_of_many_words_is_all_in_passages(words: int) -> None:
    text = " ".join(f"w{n}" for n in range(words))
    assert " ".join(piece.text for piece in cut(text, "8:0")) == text


def test_a_picture_of_passages_says_so(tmp_path: Path) -> None:
    documents = [Document("a cat sat. " * 9, "a"), Document("a dog ran. " * 9, "b")]
    with Index.build(tmp_path / "index", documents, Tokenizing(), passages="10:0") as index:
        count = len(index)
        assert title_of(make_picture(index, layout="pca")).startswith(f"{count} passages of 2 documents; PCA")
        sampled = make_picture(index, layout="pca", sample=3)
        assert title_of(sampled).startswith(f"3 of {count} passages of 2 documents; PCA")
        index.delete(["a"])
        assert "passages of 1 document;" in title_of(make_picture(index, layout="pca"))
    with (
        Index.build(tmp_path / "small", ["a cat"], Tokenizing(), passages="10:0") as index,
        pytest.raises(InputError, match="at least 3 passages, the index has 1"),
    ):
        make_picture(index)
