"""`Index.get`: documents by their ids, after any change to the index."""

from __future__ import annotations

from pathlib import Path

from fake_encoder import FakeEncoder

from embedkit.index import Document, Index


def test_documents_come_in_the_order_of_the_ids(tmp_path: Path, encoder: FakeEncoder) -> None:
    documents = [Document(f"text {i}", f"id{i}", {"number": i}) for i in range(5)]
    with Index.build(tmp_path / "index", documents, encoder) as index:
        index.add([Document("added", "new")])
        index.upsert([Document("changed", "id1", {"number": 10})])
        index.delete(["id3"])
        found = index.get(["new", "id1", "none", "id3", "id0", "new"])
        assert [(item.id, item.text, item.metadata) for item in found] == [
            ("new", "added", {}),
            ("id1", "changed", {"number": 10}),
            ("id0", "text 0", {"number": 0}),
            ("new", "added", {}),
        ]
        assert index.get([]) == []
        assert index.compact()
        assert index.get(["new", "id1", "none", "id3", "id0", "new"]) == found
