"""`embedkit-index map`: points against scikit-learn, clusters and their names, and the files."""

from __future__ import annotations

import errno
import json
import os
import re
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from fake_encoder import FakeEncoder

from embedkit.cli.main import main
from embedkit.index import Document, Index, InputError
from embedkit.index.figure import check_plot
from embedkit.index.picture import make_picture, write_page
from embedkit.index.picture.make import OTHER, _colored, layout_of, name_clusters

TOPICS = {
    "cooking": "lentil soup onion garlic pan simmer",
    "flight": "aircraft wing engine pilot airport runway",
    "music": "violin concert orchestra melody piano song",
}


def documents() -> list[Document]:
    random = np.random.default_rng(0)
    found = []
    for n in range(150):
        topic = list(TOPICS)[n % 3]
        words = " ".join(random.choice(TOPICS[topic].split(), 4, replace=False))
        fields = {"topic": topic, "year": 1900 + n, "author": {"name": "<b>Ann</b>" if n % 2 else "Bob"}}
        found.append(Document(f"the {words} of it </script><script>alert({n})</script>", f"d{n}", fields))
    return found


@pytest.fixture(scope="module")
def index_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("picture") / "index"
    Index.build(path, documents(), FakeEncoder(truncate_dim=64)).close()
    return path


def test_points_are_those_of_scikit_learn() -> None:
    decomposition = pytest.importorskip("sklearn.decomposition")
    vectors = np.random.default_rng(0).standard_normal((200, 16)).astype(np.float32) * np.arange(1, 17)
    points, how = layout_of(vectors.astype(np.float32), "pca")
    reference = decomposition.PCA(2)
    expected = reference.fit_transform(vectors)
    for axis in range(2):
        assert abs(np.corrcoef(points[:, axis], expected[:, axis])[0, 1]) == pytest.approx(1, abs=1e-5)
    assert how == f"PCA, {reference.explained_variance_ratio_.sum():.0%} of the variance"


class Umap(ModuleType):
    """In place of umap-learn: takes the first two columns."""

    def __init__(self) -> None:
        super().__init__("umap")
        self.__spec__ = ModuleSpec("umap", None)
        self.options: dict[str, Any] = {}

    def UMAP(self, **options: Any) -> Umap:
        self.options = options
        return self

    def fit_transform(self, vectors: Any) -> Any:
        return vectors[:, :2].astype(np.float64)


def test_umap_is_used_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = np.random.default_rng(0).standard_normal((10, 5)).astype(np.float32)
    monkeypatch.setitem(sys.modules, "umap", None)  # type: ignore[arg-type]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: sys.modules.get(name))
    assert layout_of(vectors, "auto")[1].startswith("PCA")
    with pytest.raises(ImportError, match="pip install umap-learn"):
        layout_of(vectors, "umap")
    umap = Umap()
    monkeypatch.setitem(sys.modules, "umap", umap)
    for layout in ("auto", "umap"):
        points, how = layout_of(vectors, layout)  # type: ignore[arg-type]
        assert how == "UMAP" and points.dtype == np.float32
        np.testing.assert_array_equal(points, vectors[:, :2])
    assert umap.options["n_neighbors"] == 9 and umap.options["random_state"] is not None
    for few in (1, 2, 3):
        assert layout_of(vectors[:few], "auto")[0].shape == (few, 2)


def test_real_umap_keeps_neighbors() -> None:
    pytest.importorskip("umap")
    centers = np.repeat(np.eye(3, 16, dtype=np.float32) * 5, 20, axis=0)
    points, how = layout_of(
        centers + np.random.default_rng(0).standard_normal((60, 16)).astype(np.float32), "umap"
    )
    assert how == "UMAP" and np.isfinite(points).all()
    distances = np.linalg.norm(points[:, None] - points[None], axis=2) + np.eye(60) * 1e9
    assert (distances.argmin(1) // 20 == np.arange(60) // 20).mean() > 0.9


def test_clusters_are_topics_and_named_by_their_words(index_path: Path) -> None:
    with Index.open(index_path, FakeEncoder(truncate_dim=64)) as index:
        picture = make_picture(index, layout="pca", clusters=3)
        again = make_picture(index, layout="pca", clusters=3)
    assert (picture.points == again.points).all() and picture.names == again.names
    topics = [document.metadata["topic"] for document in documents()]
    for number, name in enumerate(picture.names):
        mine = [
            topic
            for topic, cluster in zip(topics, picture.clusters.tolist(), strict=True)
            if cluster == number
        ]
        most = max(set(mine), key=mine.count)
        assert mine.count(most) / len(mine) > 0.9
        assert set(name.split(", ")) <= set(TOPICS[most].split())


def test_names_are_the_words_of_the_largest_weight() -> None:
    texts = ["cats purr", "cats purr softly", "dogs bark", "dogs bark loudly", "the the and"]
    assert name_clusters(texts, np.array([0, 0, 1, 1, 1]), 2) == ["cats, purr", "bark, dogs"]
    assert name_clusters(["我喜欢苹果", "苹果好吃"], np.array([0, 0]), 1)[0].startswith("苹果")
    assert name_clusters(["?", "a b"], np.array([0, 1]), 2) == ["cluster 1", "cluster 2"]


def test_names_of_clusters_in_other_scripts() -> None:
    def name(*texts: str) -> set[str]:
        return set(name_clusters([*texts, "?"], np.array([*[0] * len(texts), 1]), 2)[0].split(", "))

    assert "मौसम" in name("दिल्ली में मौसम बहुत ठंडा है", "मौसम विभाग ने चेतावनी दी", "आज का मौसम")
    assert name("இன்று வானிலை நன்று", "நாளை வானிலை மோசம்") == {"வானிலை"}
    assert name("오늘 날씨가 좋다", "내일 날씨가 나쁘다") == {"날씨가"}
    assert name("サッカー", "サッカー好") == {"サッ", "ッカ", "カー"}
    assert name("ที่นี้", "ที่นี้") == {"ที่นี้"}  # a pair of letters, each with two marks
    assert name("⚠️Warning3 of 2019", "Warning, covid19_x") == {"warning"}


def test_a_page_needs_nothing_else_and_holds_texts_safely(index_path: Path, tmp_path: Path) -> None:
    with Index.open(index_path, FakeEncoder(truncate_dim=64)) as index:
        picture = make_picture(index, layout="pca", color="author.name")
    write_page(picture, tmp_path / "map.html", name="{{data}} <i>x</i>")
    page = (tmp_path / "map.html").read_text()
    assert not re.search(
        r"(src|href)\s*=|https?://|@import", re.sub(r'<script id="data".*?</script>', "", page, flags=re.S)
    )
    assert page.count("<script") == page.count("</script>") == 2
    assert "&lt;i&gt;" in page and "<i>x" not in page
    content = re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.S)
    assert content is not None
    data = json.loads(content[1])
    assert len(data["points"]) == len(data["ids"]) == len(data["texts"]) == 150
    assert data["ids"][7] == "d7" and "<script>alert(7)" in data["texts"][7]
    assert {name for name, _ in data["legend"]} == {"Bob", "<b>Ann</b>"}
    assert np.abs(data["points"]).max() <= 0.5


def test_a_page_of_this_folder_is_titled_by_its_name(
    index_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(index_path)
    assert main(["map", ".", "-o", str(tmp_path / "map.html"), "--layout", "pca"]) == 0
    assert "<title>index: 150 documents" in (tmp_path / "map.html").read_text()


def test_images_and_colors(index_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    for number, options in enumerate(
        (
            [],
            ["--color", "topic"],
            ["--color", "year"],
            ["--color", "author.name", "--clusters", "5", "--sample", "40"],
        )
    ):
        path = tmp_path / f"{number}.png"
        assert main(["map", str(index_path), "-o", str(path), "--layout", "pca", *options]) == 0
        assert path.read_bytes().startswith(b"\x89PNG")
        first = capsys.readouterr().out.splitlines()[0]
        assert ("40 of 150 documents" if number == 3 else "150 documents") in first
    assert (
        main(
            ["map", str(index_path), "-o", str(tmp_path / "year.html"), "--color", "year", "--layout", "pca"]
        )
        == 0
    )
    assert '"scale":[1900.0,2049.0]' in (tmp_path / "year.html").read_text()


def test_an_image_shows_every_group_as_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("embedkit.Encoder", FakeEncoder, raising=False)
    shown = []
    monkeypatch.setattr(
        "embedkit.index.picture.plot.save_figure",
        lambda figure, path: shown.extend(text.get_text() for text in figure.axes[0].get_legend().texts),
    )
    values = ["_draft", "a$x_{$b", "plain"]
    documents = [Document(f"text {n}", f"d{n}", {"kind": values[n % 3]}) for n in range(9)]
    Index.build(tmp_path / "index", documents, FakeEncoder()).close()
    command = ["map", str(tmp_path / "index"), "-o", str(tmp_path / "map.png"), "--color", "kind"]
    assert main([*command, "--layout", "pca"]) == 0
    assert shown == ["\u200b_draft (3)", r"a\$x_{\$b (3)", "plain (3)"]
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-o", "map.gif"], "or .html"),
        (["-o", "nowhere/map.html"], "there is no folder nowhere; make it first"),
        (["-o", "nowhere/map.png"], "there is no folder nowhere; make it first"),
        (["-o", "map.html", "--color", "nothing"], "no document has the field 'nothing'"),
        (["-o", "map.html", "--clusters", "0"], "must be a positive integer"),
    ],
)
def test_wrong_usage_of_map(
    index_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert main(["map", str(index_path), *options]) == 2
    assert message in capsys.readouterr().err
    assert main(["map", str(index_path), "-o", str(index_path / "map.html")]) == 2
    assert "lies in the folder of the index" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["map.html", "map.png"])
def test_a_full_disk_leaves_the_old_picture(
    index_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
) -> None:
    pytest.importorskip("matplotlib")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / name).write_text("the old one")
    monkeypatch.setattr(os, "fsync", full)
    assert main(["map", str(index_path), "-o", str(tmp_path / name), "--layout", "pca"]) == 1
    assert f"No space left on device: '{tmp_path / name}'" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "the old one"


def test_the_place_is_checked_before_the_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    for name in ("folder.html", "folder.png"):
        (tmp_path / name).mkdir()
        assert main(["map", "no index", "-o", str(tmp_path / name)]) == 2
        assert f"{name} is a folder; name a file in it" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"folder\.png is a folder; name a file in it"):
        check_plot(tmp_path / "folder.png")


def test_few_documents(tmp_path: Path) -> None:
    with Index.build(tmp_path / "index", ["a cat", "a dog"], FakeEncoder()) as index:
        with pytest.raises(InputError, match="at least 3 documents, the index has 2"):
            make_picture(index)
        index.add([Document("a bird", "b"), Document("a bird", "c")])
        picture = make_picture(index, layout="pca")
        assert picture.points.shape == (4, 2) and np.isfinite(picture.points).all()


def test_a_number_beyond_what_a_float_holds_has_no_color() -> None:
    many = [{"n": value} for value in (*range(39), 20240115, 10**400)]
    names, values = _colored("n", many)
    assert values is not None and np.isnan(values[-1]) and not np.isnan(values[:-1]).any()
    assert names[-2:] == ["20240115", "nan"] and names[7] == "7"
    names, values = _colored("n", [{"n": 10**400 + value} for value in range(40)])
    assert values is None and OTHER in names


def test_texts_that_repeat_make_no_empty_clusters(tmp_path: Path) -> None:
    with Index.build(tmp_path / "index", ["a"] * 5, FakeEncoder()) as index:
        picture = make_picture(index)
    assert len(picture.names) == len(set(picture.clusters.tolist()))
