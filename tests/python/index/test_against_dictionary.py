"""An index against a dictionary and exact search, under random changes, on every kind of Faiss index listed here.

The seed differs from run to run. ``EMBEDKIT_TEST_SECONDS`` (60) is the time for all kinds together, in equal shares;
``EMBEDKIT_TEST_ROWS`` (300) is the size of the index. A failing example is shrunk, printed as a program with its
``@reproduce_failure`` line, which goes above `IndexMachine`, and kept in ``build/hypothesis``, from where the next
run takes it first.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from faiss_kinds import needs_rabitq
from fake_encoder import FakeEncoder
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.errors import StopTest
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from embedkit.index import Document, Index, InputError
from embedkit.index.storage import faiss_part

DIMENSION = 16
SECONDS = float(os.environ.get("EMBEDKIT_TEST_SECONDS", "60"))  # for all kinds together
ROWS = int(os.environ.get("EMBEDKIT_TEST_ROWS", "300"))
FEW = ROWS <= 300
FACTORIES = [
    "Flat",
    "HNSW8",
    "IVF4,Flat",
    "IVF4,SQ8",
    "IVF4,PQ8x4fs,RFlat",
    "RR16,IVF4,PQ8x4fsr,RFlat",
    "RR16,IVF4,PQ8x4fsr,Refine(SQ8)",
    "IVF4,PQ8x4fs",
    pytest.param("IVF4,RaBitQ", marks=needs_rabitq),
    pytest.param("IVF4,RaBitQ,RFlat", marks=needs_rabitq),
    "PQ8x4fs",
]
IDS = st.integers(0, ROWS + 100).map(lambda number: f"id-{number}")
KEPT = DirectoryBasedExampleDatabase(Path(__file__).resolve().parents[3] / "build" / "hypothesis")


class Vectors(FakeEncoder):
    """Encodes the text "n …" as the n-th of a fixed set of random vectors, modulo their number."""

    def __init__(self) -> None:
        super().__init__(truncate_dim=DIMENSION)
        vectors = np.random.default_rng(0).standard_normal((ROWS + 3700, DIMENSION)).astype(np.float32)
        self.vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def encode_document(self, sentences: list[str], *, normalize_embeddings: bool = False) -> np.ndarray:
        return self.of([int(text.split()[0]) for text in sentences])

    def of(self, numbers: Sequence[int] | np.ndarray) -> np.ndarray:
        return self.vectors[np.asarray(numbers, np.int64) % len(self.vectors)]

    encode_query = encode_document


ENCODER = Vectors()


class TimeIsUp(pytest.skip.Exception):
    """Ends a run of hypothesis after an example: it has no limit of time, but a skip stops it."""


class IndexMachine(RuleBasedStateMachine):
    """Makes the same changes to an index and to a dictionary, and compares searches with exact ones."""

    factory = "Flat"
    deadline = float("inf")  # on time.monotonic(), for this kind
    examples: ClassVar[int] = 0
    failed: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="embedkit-index-"))
        self.index: Index | None = None

    @initialize(seed=st.integers(0, 2**16))
    def build(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.next = 0
        self.expected: dict[str, tuple[int, int]] = {}  # id -> (vector, year)
        documents = [self.document(f"id-{number}") for number in range(ROWS)]
        self.index = Index.build(self.folder / "index", documents, ENCODER, factory=self.factory)

    def document(self, id: str) -> Document:
        number, year = self.next, int(self.rng.integers(2000, 2020))
        self.next += 1
        self.expected[id] = (number, year)
        return Document(f"{number} word{number % 7}", id, {"year": year, "odd": bool(number % 2)})

    @rule(ids=st.lists(IDS, min_size=1, max_size=12, unique=True))
    def add(self, ids: list[str]) -> None:
        known = [id for id in ids if id in self.expected]
        if known:
            with pytest.raises(InputError, match="is already in the index; upsert replaces documents"):
                self.index.add([Document(f"{self.next} x", id) for id in ids])
            ids = [id for id in ids if id not in self.expected]
        assert self.index.add([self.document(id) for id in ids]).documents == len(ids)

    @rule(ids=st.lists(IDS, min_size=1, max_size=12))
    def upsert(self, ids: list[str]) -> None:
        replaced = len({id for id in ids if id in self.expected})
        written = self.index.upsert([self.document(id) for id in ids])
        assert (written.documents, written.replaced) == (len(set(ids)), replaced)

    @precondition(lambda self: self.expected)
    @rule(share=st.sampled_from([0.02, 0.3, 1.0 if FEW else 0.5]))
    def delete(self, share: float) -> None:
        count = max(1, int(share * len(self.expected)))
        ids = self.rng.permutation(sorted(self.expected))[:count].tolist()
        with pytest.raises(InputError, match="no document with the id 'none'; nothing was deleted"):
            self.index.delete([*ids, "none"])
        assert self.index.delete(ids) == count
        for id in ids:
            del self.expected[id]

    @rule(year=st.integers(2000, 2020))
    def delete_where(self, year: int) -> None:
        gone = [id for id, (_, of) in self.expected.items() if of == year]
        assert self.index.delete(where=f"year = {year}") == len(gone)
        for id in gone:
            del self.expected[id]

    @precondition(lambda self: len(self.expected) >= 40)  # enough to train a quantizer again
    @rule()
    def compact(self) -> None:
        self.index.compact()
        assert self.index.info()["deleted"] == 0

    @rule()
    def reopen(self) -> None:
        self.index.close()
        self.index = Index.open(self.folder / "index", ENCODER)

    @rule()
    def crash(self) -> None:
        """A writer was killed while working."""
        root = self.folder / "index"
        (root / "segments" / ".writing-000099-dead").mkdir(exist_ok=True)
        (root / "segments" / ".writing-000099-dead" / "vectors.faiss").write_bytes(b"half")
        (root / "segments" / "000099-orphan").mkdir(exist_ok=True)
        (root / "tombstones" / "000099-orphan.bits").write_bytes(b"\x01")
        (root / "manifests" / "000099.json.tmp").write_bytes(b"{")

    @invariant()
    def finds_the_same(self) -> None:
        assert len(self.index) == len(self.expected)
        for where, accept in (
            (None, lambda year: True),
            ("year = 2003", lambda year: year == 2003),
            (
                "year > 2001 and not (year between 2010 and 2011)",
                lambda year: year > 2001 and year not in (2010, 2011),
            ),
        ):
            self.compare(where, {id: number for id, (number, year) in self.expected.items() if accept(year)})

    def compare(self, where: str | None, documents: dict[str, int]) -> None:
        """Compare a search with exact scores of ``documents``, id -> vector."""
        # through selectors and over-fetching, or one by one
        faiss_part.EXACT_ROWS = int(self.rng.choice([0, 40, 20_000]))
        queries = self.rng.integers(0, len(ENCODER.vectors), 3)
        k = int(self.rng.choice([1, 5, 40]))
        parameters = {"rescore": 400}  # all are candidates, if there are few
        info = self.index.info()
        if info["nlist"]:
            parameters["nprobe"] = info["nlist"]
        if info["ef"]:
            parameters["ef"] = 2000
        found = self.index.search(
            [f"{number} x" for number in queries], k, where=where, hybrid=False, **parameters
        )
        ids = list(documents)
        exact = ENCODER.of(queries) @ ENCODER.of([documents[id] for id in ids]).T
        for hits, scores in zip(found, exact, strict=True):
            assert len(hits) == min(k, len(ids))
            by_id = dict(zip(ids, scores.tolist(), strict=True))
            assert len({hit.id for hit in hits}) == len(hits)
            for hit in hits:
                assert hit.score == pytest.approx(by_id[hit.id], abs=1e-5)
                assert int(hit.text.split()[0]) == documents[hit.id]
            best = np.sort(scores)[::-1][: len(hits)]
            if self.factory in ("Flat", "IVF4,Flat") or (FEW and self.factory != "HNSW8"):
                np.testing.assert_allclose([hit.score for hit in hits], best, atol=1e-5)
            elif len(hits):  # a graph may miss one, and RaBitQ has 16 bits for 200,000 vectors
                missed = np.mean(best) - np.mean([hit.score for hit in hits])
                assert missed <= (0.4 if "RaBitQ" in self.factory else 0.15)

    def teardown(self) -> None:
        kind = type(self)
        failure = sys.exc_info()[1]  # hypothesis calls this in a `finally`
        kind.failed |= not isinstance(failure, StopTest | None)
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, self.folder)
            if self.index is not None:
                stack.callback(self.index.close)
                if failure is None:
                    self.verify()
        kind.examples += 1
        # The first example is hypothesis' smallest one. Once one has failed, time goes into shrinking it.
        if failure is None and not kind.failed and kind.examples >= 2 and time.monotonic() > kind.deadline:
            raise TimeIsUp

    def verify(self) -> None:
        try:
            self.index.verify(sample=20)
        except Exception:
            type(self).failed = True
            raise


@pytest.mark.parametrize("factory", FACTORIES)
def test_an_index_does_what_a_dictionary_does(factory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda descriptor: None)  # the machine does not lose its power here
    monkeypatch.setattr("embedkit.index.storage.faiss_index.AUTO_IVF_ROWS", 60)
    monkeypatch.setattr(faiss_part, "EXACT_ROWS", faiss_part.EXACT_ROWS)  # put back at the end
    deadline = time.monotonic() + SECONDS / len(FACTORIES)
    name = re.sub(r"\W+", "_", f"IndexMachine_{factory}")  # examples are kept by this name
    machine = type(name, (IndexMachine,), {"factory": factory, "deadline": deadline})
    try:
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=1_000_000,  # the deadline ends it
                stateful_step_count=15,
                deadline=None,
                database=KEPT,
                print_blob=True,
                report_multiple_bugs=False,
                phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
                suppress_health_check=list(HealthCheck),
            ),
        )
    except TimeIsUp:
        print(f"{machine.examples} examples")
