"""The words of hybrid search: stems, stop words, titles, scripts without spaces, and indexes of earlier versions."""

from __future__ import annotations

import json
import sqlite3
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from fake_encoder import FakeEncoder

from embedkit.index import BuildSettings, Document, Index, IndexDamagedError, ResumeError
from embedkit.index.storage.layout import current_name
from embedkit.index.storage.manifest import hash_file
from embedkit.index.storage.words import titles_of
from embedkit.index.words import languages
from embedkit.index.words.analyzer import Analyzer
from embedkit.index.words.languages import LANGUAGES, check_language, detect_language, stop_words


def rows_found(index: Index, query: str) -> list[str]:
    """The ids of the documents with words of ``query``, best first."""
    generation = index.generation
    return index.ids([row for row, _ in generation.keywords(generation.asked(query), 100, None)])


def test_stop_words_are_left_out_of_queries_but_not_of_texts() -> None:
    english = Analyzer("english")
    assert english.words("What is the boundary layer?") == ["boundary", "layer"]
    assert english.words("to be or not to be") == ["to", "be", "or", "not"]
    assert english.text("What is it?") == "What is it?"
    assert english.words("?!") == []
    assert Analyzer("none").words("what is it") == ["what", "is", "it"]
    assert len(english.words(" ".join(f"w{n}" for n in range(1000)))) == 512


@pytest.mark.parametrize(
    ("language", "stored", "query"),
    [
        ("english", "They were connecting several relational connections", "connected relation"),
        ("german", "Die Häuser der Städte wurden gebaut", "haus stadt"),
        ("french", "Les recherches dans les maisons", "recherche maison"),
        ("russian", "Новые книги о лошадях", "книга лошадь"),
        ("spanish", "Las canciones favoritas", "canción favorita"),
        ("turkish", "Kitapların kapakları", "kitap kapak"),
    ],
)
def test_a_word_is_found_in_another_form(tmp_path: Path, language: str, stored: str, query: str) -> None:
    if language != "english":
        pytest.importorskip("snowballstemmer")
    texts = [stored, "nothing of this kind", "xyzzy"]
    with Index.build(tmp_path / "index", texts, FakeEncoder(), language=language) as index:
        for word in query.split():
            assert rows_found(index, word) == ["0"], word
        assert index.info()["words"] == language
    with Index.build(tmp_path / "none", texts, FakeEncoder(), language="none") as index:
        assert not any(rows_found(index, word) for word in query.split())


def test_porter_is_that_of_fts5(tmp_path: Path) -> None:
    texts = ["connected connection", "the relations of relativity", "generally generous"]
    db = sqlite3.connect(":memory:")
    db.execute("CREATE VIRTUAL TABLE t USING fts5(text, tokenize='porter unicode61')")
    db.executemany("INSERT INTO t(rowid, text) VALUES (?, ?)", list(enumerate(texts)))
    with Index.build(tmp_path / "index", texts, FakeEncoder(), language="en") as index:
        for word in ("connect", "relation", "relative", "generosity", "general"):
            expected = db.execute("SELECT rowid FROM t WHERE t MATCH ? ORDER BY bm25(t)", (word,)).fetchall()
            assert rows_found(index, word) == [str(row) for (row,) in expected]


@pytest.mark.parametrize(
    ("text", "words", "absent"),
    [
        ("我想买一个苹果手机，谢谢", ["苹果", "手机", "我", "机", "苹果手机", "谢"], ["果汁", "香"]),
        ("東京タワーへ行きました", ["東京", "タワー", "行き", "東", "ﾀﾜｰ"], ["京都", "大阪"]),
        ("사과를 먹었습니다", ["사과", "사과를", "먹었"], ["포도"]),
        ("ฉันชอบกินแอปเปิ้ลมาก", ["ชอบ", "แอปเปิ้ล", "มาก"], ["ส้ม"]),
        ("ຂ້ອຍມັກກິນເຂົ້າ", ["ມັກ", "ເຂົ້າ"], ["ໝາ"]),
        ("ខ្ញុំចូលចិត្តភ្នំពេញ", ["ភ្នំពេញ", "ចិត្ត"], ["ឆ្កែ"]),
        ("ကျွန်တော်ထမင်းစားပြီးပြီ", ["ထမင်း", "စား"], ["ခွေး"]),
        ("मैं हिन्दी सीख रहा हूँ", ["हिन्दी", "सीख"], ["हिन्दू"]),
        ("كِتَابٌ جَدِيدٌ", ["كتاب", "جديد"], ["قلم"]),
        ("שָׁלוֹם עולם", ["שלום"], ["בית"]),
        ("Ｆｕｌｌ ｗｉｄｔｈ ﬁnal", ["full", "final"], ["half"]),
        ("cafe\u0301 naïve Straße", ["café", "cafe", "naive"], ["coffee"]),
        ("iPhone手机壳", ["iphone", "手机"], ["电脑"]),
    ],
)
def test_words_of_every_script(tmp_path: Path, text: str, words: list[str], absent: list[str]) -> None:
    others = ["an English text", "今天天气很好", "สวัสดีครับ"]
    with Index.build(tmp_path / "index", [text, *others], FakeEncoder()) as index:
        for word in words:
            assert rows_found(index, word)[:1] == ["0"], word
        for word in absent:
            assert "0" not in rows_found(index, word), word


@pytest.mark.parametrize("language", ["none", "english"])
def test_words_beside_symbols_are_found(tmp_path: Path, language: str) -> None:
    cases = [
        ("Lipitor™ lowers cholesterol", "lipitor Lipitor™"),
        ("the GreenCard℠ of a bank", "greencard"),
        ("option ⓐfirst", "first"),
        ("①Open ❷Close", "open close"),
        ("⽇本の㍿ソニー", "日本 ソニー 会社"),  # a radical, as in the text of many PDFs
        ("3½ cups", "3 ½"),
        ("⚠️Warning of steam", "warning"),
        ("Warning⚠️danger ahead", "danger"),
        ("1️⃣Unplug it", "unplug 1"),
        ("Great job🤣", "job"),
        ("🤖Robots at work", "robots"),
        ("price 500₽", "500"),
        ("from \u2068Alice\u2069 today", "alice"),
        ("\uf0b7Lentil soup", "lentil"),  # an icon of a private font
        ("葛\U000e0100飾区に住む", "葛飾 葛\U000e0100飾"),
        ("ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ", "ᏣᎳᎩ ꮳꮃꭹ"),
        ("ᲗᲑᲘᲚᲘᲡᲘ", "თბილისი"),
        ("𞤆𞤵𞤤𞤢𞤪", "𞤆𞤵𞤤𞤢𞤪"),
        ("חׇכְמָה", "חכמה"),
        ("لَهُۥ", "له"),
        ("İzmir", "izmir"),
    ]
    texts = [text for text, _ in cases]
    with Index.build(tmp_path / "index", texts, FakeEncoder(), language=language) as index:
        for number, (_, words) in enumerate(cases):
            for word in words.split():
                assert str(number) in rows_found(index, word), word
        assert rows_found(index, "™") == rows_found(index, "tm") == ["0"]
        assert rows_found(index, "31") == rows_found(index, "🤣") == []


@pytest.mark.parametrize("language", ["none", "english", "greek", "russian"])
def test_accents_are_folded(tmp_path: Path, language: str) -> None:
    if language in ("greek", "russian"):
        pytest.importorskip("snowballstemmer")
    cases = [
        "Αθήνα ΑΘΗΝΑ αθηνα αθη\u0301να",
        "προϊόν ΠΡΟΪΟΝ προιον",
        "ᾠδή ὠδή ωδη",
        "α\u0306\u0301λφα άλφα αλφα",  # NFKC composes no letter of this
        "ёлка ЁЛКА елка е\u0308лка",
        "café cafe",
        "йод",
        "иод",
    ]
    for turn in (1, -1):
        texts = [case.split()[::turn][0] for case in cases]
        with Index.build(tmp_path / str(turn), texts, FakeEncoder(), language=language) as index:
            for number, case in enumerate(cases):
                for word in case.split():
                    assert rows_found(index, word) == [str(number)], word
    assert Analyzer(language).finder("αθηνα елка")("Η Αθήνα, ёлка") == ["Αθήνα", "ёлка"]


def test_letters_and_their_marks_stay_together() -> None:
    none = Analyzer("none")
    assert none.text("苹果汁").split() == ["苹果", "果汁", "汁"]
    assert none.words("苹果汁") == none.terms("苹果汁") == ["苹果", "果汁"]
    assert none.words("果") == none.terms("果") == ["果*"]
    assert none.text("ที่นี่").split() == ["ที่นี่", "นี่"]
    assert none.text("ភ្នំ").split() == ["ភ្នំ"]


@pytest.mark.parametrize("language", ["english", "none", "russian"])
def test_words_of_any_length_are_stored_and_found(tmp_path: Path, language: str) -> None:
    if language == "russian":
        pytest.importorskip("snowballstemmer")
    # letters of one to four bytes; a letter with many marks, in a script of words and in one without spaces
    words = ["x" * 100_000, "a" + "ж" * 40_000, "ა" * 20_000, "𐐨" * 9000, "e" + "\u0301" * 20_000]
    words += ["ก" + "ุ" * 20_000, "กข" + "ุ" * 20_000, "苹果汁" * 9000]
    documents = [Document(f"soup {word} end", str(n)) for n, word in enumerate(words)]
    documents += [
        Document("soup " + "🙂" * 20_000 + " end", "emoji"),
        Document("soup", "title", {"title": "ბ" * 20_000}),
    ]
    with Index.build(tmp_path / "index", documents, FakeEncoder(), language=language) as index:
        for number, word in enumerate(words):
            assert rows_found(index, word)[0] == str(number)
        assert rows_found(index, "ბ" * 20_000) == ["title"]
        assert len(rows_found(index, "end")) == len(words) + 1
        assert len(rows_found(index, "soup")) == len(documents)
        assert rows_found(index, "🙂" * 20_000) == []


def test_the_words_of_a_query_are_those_of_its_beginning() -> None:
    none = Analyzer("none")
    assert none.words("a " * 9_999 + "bc cd") == ["a", "bc"]
    assert none.words("苹" * 20_000 + "果") == ["苹苹"]


def test_titles_and_headings_count_more(tmp_path: Path) -> None:
    body = "words about other things, and more of them"
    documents = [
        Document(f"turbine {body}", "text"),
        Document(f"number {body}", "title", {"title": "turbine"}),
        Document(f"number {body}", "heading", {"headings": ["Intro", "The turbines"]}),
        Document(f"number {body}", "none", {"titles": "turbine", "title": 5}),
    ]
    with Index.build(tmp_path / "index", documents, FakeEncoder(), language="english") as index:
        assert rows_found(index, "turbine")[0] == "title"
        assert sorted(rows_found(index, "turbine")) == ["heading", "text", "title"]
    assert titles_of('{"title":"a","heading":["b","c"],"headings":null}') == "a\nb\nc"
    assert titles_of('{"name":"title"}') == ""


@pytest.mark.parametrize(
    ("texts", "language"),
    [
        (["The wings of the aircraft are heated by the flow.", "Which of these is it?"], "english"),
        (["Die Flügel des Flugzeugs werden von der Strömung erhitzt.", "Das ist ein Haus."], "german"),
        (["Les ailes de l'avion sont chauffées par le flux.", "C'est une maison dans la rue."], "french"),
        (
            ["Las alas del avión se calientan con el flujo de aire.", "Esta es la casa de mi madre."],
            "spanish",
        ),
        (["Крылья самолёта нагреваются от потока, и это не всё.", "Он был в доме с ней."], "russian"),
        (["De vleugels van het vliegtuig worden door de stroming verwarmd.", "Dit is een huis."], "dutch"),
        (["今天天气很好", "我想买苹果"], "auto"),
        (["x1 y2", "text 3"], "auto"),
        ([], "auto"),
    ],
)
def test_the_language_is_told_by_its_function_words(texts: list[str], language: str) -> None:
    assert detect_language(texts) == language


@pytest.mark.parametrize(
    ("language", "text"),
    [
        (
            "italian",
            "Questo è il libro che ho letto ieri, ma non è mio. Sono arrivati con la pioggia di notte.",
        ),
        ("portuguese", "Este é o livro que eu li ontem, mas não é meu. Eles chegaram com a chuva da noite."),
        (
            "swedish",
            "Det här är boken som jag läste i går, men den är inte min. De kom med regnet på natten.",
        ),
        (
            "danish",
            "Det her er bogen, som jeg læste i går, men den er ikke min. De kom ud efter mødet, og det blev sent.",
        ),
        (
            "norwegian",
            "Dette er boka som jeg leste i går, men den er ikke min. Hun sa noe om det etter møtet.",
        ),
        (
            "finnish",
            "Tämä on kirja, jonka hän luki eilen, mutta se ei ole minun. Ne olivat myös talossa, kun satoi.",
        ),
        (
            "turkish",
            "Bu, dün okuduğum kitap ama benim değil. O da yağmur gibi çok hızlı geldi ve bir şey demedi.",
        ),
        (
            "hungarian",
            "Ez az a könyv, amit tegnap olvastam, de nem az enyém. Most már hogy van, és mit csinál?",
        ),
        (
            "romanian",
            "Aceasta este cartea pe care am citit-o ieri, dar nu este a mea. Au venit cu ploaia din noapte.",
        ),
        (
            "indonesian",
            "Ini adalah buku yang saya baca kemarin, tetapi bukan milik saya. Mereka datang dengan hujan.",
        ),
        ("russian", "Это книга, которую я читал вчера, но она не моя. Они пришли с дождём, и я был дома."),
        ("auto", "Це книга, яку я читав учора, але вона не моя. Вони прийшли з дощем, і я був вдома."),
        ("auto", "Гэта кніга, якую я чытаў учора, але яна не мая. Яны прыйшлі з дажджом, і я быў дома."),
        ("auto", "Това е книгата, която четох вчера, но тя не е моя. Те дойдоха с дъжда и аз бях в къщи."),
        (
            "auto",
            "Ова је књига коју сам читао јуче, али она није моја. Дошли су с кишом, и ја сам био код куће.",
        ),
        ("auto", "Ова е книгата што ја читав вчера, но таа не е моја. Тие дојдоа со дождот и јас бев дома."),
        (
            "auto",
            "Ovo je knjiga koju sam čitao jučer, ali nije moja. Došli su s kišom i rekli kako je to kod nas.",
        ),
        (
            "auto",
            "To je knjiga, ki sem jo bral včeraj, vendar ni moja. Prišli so z dežjem in vse je bilo že mokro.",
        ),
        (
            "auto",
            "To jest książka, którą czytałem wczoraj, ale nie jest moja. Przyszli już z deszczem do domu.",
        ),
        ("auto", "To je kniha, kterou jsem četl včera, ale není moje. Přišli s deštěm, když jsem byl doma."),
        (
            "auto",
            "Ito ang aklat na binasa ko kahapon, pero hindi ito sa akin. Dumating sila kasama ng mga kapatid.",
        ),
        (
            "auto",
            "Þetta er bókin sem ég las í gær, en hún er ekki mín. Við komum með regninu og það var seint.",
        ),
        (
            "auto",
            "See on raamat, mida ma eile lugesin, aga see ei ole minu oma. Nad tulid vihmaga ja olid juba kodus.",
        ),
        (
            "auto",
            "Bu, dünən oxuduğum kitabdır, amma mənim deyil. Onlar yağışla gəldi və heç nə demədi, çünki gec idi.",
        ),
        (
            "auto",
            "Este é o libro que lin onte, pero non é meu. Eles chegaron coa chuvia da noite e agora xa marcharon.",
        ),
        (
            "auto",
            "Bu kecha o'qigan kitobim, lekin meniki emas. Ular juda kech keldi va uy haqida bir narsa dedi.",
        ),
        (
            "auto",
            "Dit is die boek wat ek gister gelees het, maar dit is nie myne nie. Hulle het met die reën gekom.",
        ),
        (
            "auto",
            "Ini ialah buku yang saya baca semalam, tetapi bukan milik saya kerana mereka pergi selepas hujan.",
        ),
    ],
)
def test_related_languages_are_told_apart(language: str, text: str) -> None:
    assert detect_language([text]) == language
    assert detect_language([text] * 20) == language


def test_russian_is_told_by_its_letters() -> None:
    # of words that Russian has, too, or nearly; real texts have others
    assert detect_language(["на и не с по да за от но во"]) == "russian"
    assert detect_language(["на и не с по да за от но во"] * 20) == "auto"
    assert detect_language(["на и не с по да за от но вы"] * 20) == "russian"
    assert detect_language(["на и не с по да за от но во їжа"]) == "auto"


def test_the_words_that_tell_others_are_no_function_words() -> None:
    for language, words in languages._OTHERS.items():
        assert not words & stop_words(language), language


def test_every_language_with_stop_words_has_a_stemmer() -> None:
    snowballstemmer = pytest.importorskip("snowballstemmer")
    assert set(LANGUAGES) <= set(snowballstemmer.algorithms())
    assert all(not stop_words(name) or name in LANGUAGES for name in LANGUAGES)
    assert check_language(" DE ") == "german"
    for wrong in ("klingon", ""):
        with pytest.raises(ValueError, match="unknown language"):
            check_language(wrong)
    with pytest.raises(ValueError, match="unknown language 'xx'"):
        BuildSettings(language="xx")
    with pytest.raises(TypeError, match="language must be a string"):
        BuildSettings(language=3)  # type: ignore[arg-type]


def test_the_language_is_kept_and_can_be_changed(tmp_path: Path) -> None:
    path = tmp_path / "index"
    with Index.build(path, ["x1 y2"], FakeEncoder()) as index:
        assert index.info()["words"] == "not stemmed"
        assert index.generation.manifest.language == "auto"
        index.add([Document("The aircraft are flying over the houses of the city, and it was seen.", "a")])
        assert index.generation.manifest.language == "english"
        assert index.info()["words"] == "english, not stemmed"
        assert rows_found(index, "fly house") == ["a"]
        assert index.compact()
        assert index.info()["words"] == "english"
        assert not index.compact()
        assert index.compact(language="none")
        assert not rows_found(index, "house")
        assert index.generation.manifest.language == "none"


def test_a_missing_stemmer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from embedkit.index.words import analyzer

    monkeypatch.setitem(sys.modules, "snowballstemmer", None)
    analyzer.analyzer.cache_clear()
    with pytest.raises(ImportError, match=r"german words need snowballstemmer.*pip install"):
        Index.build(tmp_path / "index", ["ein Haus"], FakeEncoder(), language="german")
    texts = ["Die Flügel des Flugzeugs werden von der Strömung erhitzt."]
    with pytest.warns(UserWarning, match="the texts are german: .*compact --language german"):
        index = Index.build(tmp_path / "index", texts, FakeEncoder())
    assert index.info()["words"] == "not stemmed"
    index.close()
    analyzer.analyzer.cache_clear()


def test_an_interrupted_build_knows_its_language(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("embedkit.index.build.build.publish", stop)
    with pytest.raises(KeyboardInterrupt):
        Index.build(tmp_path / "index", ["a cat"], FakeEncoder(), language="english")
    monkeypatch.undo()
    with pytest.raises(ResumeError, match="another language"):
        Index.build(tmp_path / "index", ["a cat"], FakeEncoder(), language="none")
    with Index.build(tmp_path / "index", ["a cat"], FakeEncoder(), language="english") as index:
        assert index.info()["words"] == "english"


def of_an_earlier_version(path: Path, version: int | None) -> None:
    """Make the index one whose words an embedkit made that this one does not read."""
    manifest = path / "manifests" / current_name(path)
    content: dict[str, Any] = json.loads(manifest.read_bytes())
    if version is None:
        del content["language"]
    for segment in content["segments"]:
        segment["words"] = None if version is None else segment["words"] | {"version": version}
        file = path / "segments" / segment["name"] / "documents.sqlite"
        db = sqlite3.connect(file, isolation_level=None)
        db.execute("DROP TABLE words")
        db.close()
        segment["files"]["documents.sqlite"] = asdict(hash_file(file))
    manifest.write_text(json.dumps(content))


@pytest.mark.parametrize("version", [None, 2])
def test_an_index_of_an_earlier_version_answers_and_says_what_it_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, version: int | None
) -> None:
    from embedkit.cli.main import main

    path = tmp_path / "index"
    texts = ["The houses of the city are being built", "It was a good apple", "我想买苹果"]
    Index.build(path, texts, FakeEncoder()).close()
    of_an_earlier_version(path, version)
    monkeypatch.setattr("embedkit.Encoder", FakeEncoder, raising=False)
    with Index.open(path, FakeEncoder()) as index:
        assert index.info()["words"] == "of an earlier version: compact renews them"
        assert index.search("houses", k=1)[0][0].parts is None
        with pytest.raises(
            ValueError, match="made by an earlier embedkit; embedkit-index compact makes them"
        ):
            index.search("houses", k=1, hybrid=True)
        (tmp_path / "pairs.tsv").write_text("house\t0\n")
        for command in (
            ["query", str(path), "house"],
            ["eval", str(path), "--pairs", f"{tmp_path}/pairs.tsv"],
        ):
            assert main(command) == 0
            assert capsys.readouterr().err.count("embedkit-index compact makes them again") == 1
        index.add([Document("a new house", "new")])
        assert index.search("house", k=1)[0][0].parts is None
        assert index.compact()
        assert index.info()["words"] == "english"
        assert set(rows_found(index, "house")) == {"0", "new"} and rows_found(index, "苹果") == ["2"]
        assert not index.compact()
    assert main(["query", str(path), "house"]) == 0
    assert "compact" not in capsys.readouterr().err


def test_words_of_an_earlier_version_keep_their_languages(tmp_path: Path) -> None:
    sources = {"english": "The houses of the cities were being built", "german": "Die Häuser in den Städten"}
    for language, text in sources.items():
        document = Document(text, language)
        Index.build(tmp_path / language, [document, Document("x", f"{language} 2")], FakeEncoder()).close()
    path = tmp_path / "index"
    Index.merge(path, [tmp_path / language for language in sources]).close()
    of_an_earlier_version(path, 5)
    with Index.open(path, FakeEncoder()) as index:
        index.delete(["german 2"])  # which writes the manifest again
        assert index.info()["words"] == "of an earlier version: compact renews them"
        with pytest.raises(ValueError, match=r"its words are in several languages \(english, german\)"):
            index.compact()
        assert index.compact(language="german")
        assert rows_found(index, "Haus") == ["german"]


def test_words_of_a_later_version_are_named(tmp_path: Path) -> None:
    Index.build(tmp_path / "index", ["a cat"], FakeEncoder()).close()
    of_an_earlier_version(tmp_path / "index", 99)
    with pytest.raises(IndexDamagedError, match="words of version 99, and this embedkit reads"):
        Index.open(tmp_path / "index", FakeEncoder())


def test_capitals_are_lowered_as_in_turkish(tmp_path: Path) -> None:
    pytest.importorskip("snowballstemmer")
    texts = ["IŞIK HIZI", "Işık hızı", "ışık hızı", "İstanbul", "IRMAK", "nothing of this kind"]
    with Index.build(tmp_path / "index", texts, FakeEncoder(), language="turkish") as index:
        assert sorted(rows_found(index, "ışık")) == sorted(rows_found(index, "IŞIK")) == ["0", "1", "2"]
        assert rows_found(index, "istanbul") == ["3"]
        assert rows_found(index, "ırmak") == ["4"]
