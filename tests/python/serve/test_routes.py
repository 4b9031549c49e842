"""Reranking, the routes of Text Embeddings Inference, metrics and the description."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running_server import RunningServer, eventually

from embedkit import CrossEncoder, Encoder
from embedkit.serve.models import weights_bytes

QUERY = "the weather today"
TEXTS = ["people stay out", "the weather is lovely", "", "now and the weather is lovely today"]


@pytest.fixture(scope="module")
def ranked(reranker: Path) -> list[dict[str, Any]]:
    return CrossEncoder(reranker).rank(QUERY, TEXTS)


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_rerank_as_cohere(searching: RunningServer, ranked: list[dict[str, Any]], path: str) -> None:
    documents = [TEXTS[0], {"text": TEXTS[1]}, *TEXTS[2:]]
    body = {"query": QUERY, "documents": documents, "rank_fields": ["text"], "return_documents": True}
    answer = searching.post(path, body).json()
    expected = [
        {
            "index": hit["corpus_id"],
            "relevance_score": hit["score"],
            "document": {"text": TEXTS[hit["corpus_id"]]},
        }
        for hit in ranked
    ]
    assert answer["results"] == expected
    answer = searching.post(path, {"query": QUERY, "documents": TEXTS, "top_n": 2, "model": "tiny"}).json()
    assert [hit["index"] for hit in answer["results"]] == [hit["corpus_id"] for hit in ranked[:2]]
    assert "document" not in answer["results"][0]


def test_rerank_as_tei(searching: RunningServer, ranked: list[dict[str, Any]], reranker: Path) -> None:
    answer = searching.post("/rerank", {"query": QUERY, "texts": TEXTS, "return_text": True}).json()
    assert answer == [
        {"index": hit["corpus_id"], "score": hit["score"], "text": TEXTS[hit["corpus_id"]]} for hit in ranked
    ]
    raw = searching.post("/rerank", {"query": QUERY, "texts": TEXTS, "raw_scores": True}).json()
    logits = CrossEncoder(reranker).predict([(QUERY, text) for text in TEXTS], activation_fn="identity")
    assert [hit["score"] for hit in raw] == sorted(map(float, logits), reverse=True)
    assert searching.post("/rerank", {"query": QUERY, "texts": []}).json() == []


def test_scores_are_from_0_to_1_whatever_the_folder_says(
    start: Callable[..., RunningServer], index_folder: Path, reranker: Path, tmp_path: Path
) -> None:
    """As the folders of the ms-marco models, whose activation is the identity."""
    folder = Path(shutil.copytree(reranker, tmp_path / "identity"))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["sentence_transformers"] = {"activation_fn": "torch.nn.modules.linear.Identity"}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    model = CrossEncoder(folder)
    assert model.activation_fn == "identity"

    def sigmoids(texts: list[str]) -> list[float]:
        logits = model.predict([(QUERY, text) for text in texts]).astype(np.float64)
        assert np.abs(logits).max() > 1
        return sorted((1 / (1 + np.exp(-logits))).tolist(), reverse=True)

    with start("--rerank", f"mine={folder}", "--index", str(index_folder), "--threads", "1") as running:
        cohere = running.post("/v2/rerank", {"query": QUERY, "documents": TEXTS}).json()["results"]
        tei = running.post("/rerank", {"query": QUERY, "texts": TEXTS}).json()
        for found in ([hit["relevance_score"] for hit in cohere], [hit["score"] for hit in tei]):
            np.testing.assert_allclose(found, sigmoids(TEXTS), atol=1e-6)
        raw = running.post("/rerank", {"query": QUERY, "texts": TEXTS, "raw_scores": True}).json()
        logits = model.predict([(QUERY, text) for text in TEXTS])
        np.testing.assert_allclose([hit["score"] for hit in raw], sorted(logits, reverse=True), atol=1e-6)
        body = {"query": QUERY, "rerank": True, "k": 50}
        hits = running.post("/v1/search", body).json()["data"][0]["hits"]
        np.testing.assert_allclose(
            [hit["score"] for hit in hits], sigmoids([hit["text"] for hit in hits]), atol=1e-6
        )


def test_pairs_that_are_too_long_are_truncated_or_refused(
    searching: RunningServer, start: Callable[..., RunningServer], reranker: Path
) -> None:
    model = CrossEncoder(reranker)
    room = model.max_seq_length - 4  # [CLS] today [SEP] [SEP]
    fitting, long = "now " * room, "now " * (room + 1)
    assert model.predict([("today", fitting)]).shape == (1,)
    assert model.describe()["truncated"] == 0
    body = {"query": "today", "documents": ["people", fitting]}
    expected = searching.post("/rerank", body).json()
    for key in ("documents", "texts"):
        refused = {"query": "today", key: ["people", fitting, long], "truncate": False}
        answer = searching.post("/rerank", refused)
        assert answer.status_code == 400
        assert f"{key}[2] and the query are longer than the {model.max_seq_length} tokens" in answer.text
    with pytest.warns(UserWarning, match="truncated"):
        model.predict([("today", long)])
    assert searching.post("/rerank", {**body, "truncate": False}).json()["results"] == expected["results"]
    with start("--rerank", f"tiny={reranker}", "--on-overflow", "error") as strict:
        refused = {"query": "today", "documents": [long]}
        assert strict.post("/rerank", refused).status_code == 400
        assert strict.post("/rerank", {**refused, "truncate": True}).status_code == 200


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"query": "a", "texts": ["b", 1]}, "texts[1]"),
        ({"query": "a", "documents": ["b", {"title": "c"}]}, "documents[1].text"),
        (
            {"query": "a", "documents": [{"title": "c"}], "rank_fields": ["title"]},
            "rank_fields[0]: input should be 'text'",
        ),
        ({"query": 1, "documents": []}, "query"),
        ({"query": "a"}, "give documents"),
        ({"query": "a", "documents": [], "texts": []}, "give documents"),
    ],
)
def test_errors_of_rerank_suit_both_clients(searching: RunningServer, body: Any, message: str) -> None:
    response = searching.post("/rerank", body)
    assert response.status_code == 400
    answer = response.json()
    assert message in answer["message"]
    assert answer["error"] == answer["message"]
    assert answer["error_type"] == "Validation"


def test_a_server_without_a_reranker_says_so(server: RunningServer) -> None:
    answer = server.post("/rerank", {"query": "a", "documents": ["b"]})
    assert answer.status_code == 404 and "start the server with --rerank MODEL" in answer.text
    for path, body in (
        ("/rerank", {"query": "a", "texts": ["b"], "truncation_direction": "Left"}),
        ("/embed", {"inputs": "a", "truncation_direction": "left"}),
    ):
        answer = server.post(path, body)
        assert answer.status_code == 400 and "leave " in answer.text and "trunc" in answer.text


def test_embed_as_tei(server: RunningServer) -> None:
    encoder = Encoder()
    single = server.post("/embed", {"inputs": "a text"}).json()
    np.testing.assert_array_equal(np.float32(single), encoder.encode(["a text"]))
    several = server.post("/embed", {"inputs": ["a text", "b"], "normalize": False, "dimensions": 8}).json()
    np.testing.assert_array_equal(np.float32(several), encoder.encode(["a text", "b"], truncate_dim=8))
    assert server.post("/", {"inputs": "a text"}).json() == single  # where TEI's clients send it
    assert server.post("/embed", {"inputs": []}).json() == []
    error = server.post("/embed", {"inputs": ["a", {}]}).json()
    assert error == {"error": "inputs[1] must be a string, not an object", "error_type": "Validation"}


def test_info_names_what_runs(searching: RunningServer) -> None:
    info = searching.client.get("/info").json()
    assert info["model_id"] == "embedkit-256-int8"
    assert info["model_sha"] == Encoder().fingerprint
    assert info["max_input_length"] == 512
    assert info["rerankers"] == ["tiny"]
    assert info["index"]["documents"] == 200
    assert "/" not in str({**info, "model_type": None})  # no path of the machine


def test_info_is_of_the_model_that_requests_get(start: Callable[..., RunningServer], tmp_path: Path) -> None:
    """Those that name none, whether it is loaded or not."""
    models = [tmp_path / name for name in ("one", "two")]
    for path in models:
        Encoder().save(path)
    size = weights_bytes(models[0], "int8")
    given = [part for path in models for part in ("--model", f"{path.name}={path}")]
    with start(*given, "--max-memory", f"{size * 3 // 2}") as running:
        for name in ("two", "one", "two"):
            answer = running.post("/v1/embeddings", {"input": "a", "model": name})
            assert answer.status_code == 200
            info = running.client.get("/info").json()
            assert info["model_id"] == info["model"]["model"] == "one"
            assert info["max_input_length"] == 512


def test_health_is_apart_from_liveness(server: RunningServer) -> None:
    for path in ("/health", "/readyz", "/livez"):
        assert server.client.get(path).json() == {"status": "ok"}


def test_metrics(server: RunningServer) -> None:
    texts = server.metric("embedkit_texts_total")
    tokens = server.metric("embedkit_tokens_total")
    server.embed(["one", "two", "three"])
    eventually(lambda: server.metric("embedkit_texts_total") > texts)
    assert server.metric("embedkit_texts_total") == texts + 3
    assert server.metric("embedkit_tokens_total") == tokens + 9
    assert server.metric("embedkit_requests_total", route="/v1/embeddings", status="200") >= 1
    assert server.metric("embedkit_queue_requests") == 0
    assert server.metric("embedkit_queue_tokens") == 0
    assert server.metric("embedkit_batch_texts_count") >= 1
    assert server.metric("embedkit_request_seconds_count", route="/v1/embeddings") >= 1


def test_the_description_is_openapi_and_the_page_loads_nothing(server: RunningServer) -> None:
    description = server.client.get("/openapi.json").json()
    assert description["openapi"].startswith("3.1")
    assert {"/v1/embeddings", "/rerank", "/embed", "/v1/search", "/info", "/health"} <= set(
        description["paths"]
    )
    page = server.client.get("/docs")
    assert "POST /v1/embeddings" in page.text
    assert "://" not in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert server.client.get("/").headers["location"] == "/docs"


def test_no_cors_and_no_foreign_pages_by_default(
    server: RunningServer, start: Callable[..., RunningServer]
) -> None:
    response = server.post("/v1/embeddings", {"input": "a"}, headers={"origin": "https://example.org"})
    assert response.status_code == 403
    assert "access-control-allow-origin" not in response.headers
    assert server.post("/v1/embeddings", {"input": "a"}, headers={"origin": server.url}).status_code == 200
    assert server.client.get("/info", headers={"host": "rebound.example.org"}).status_code == 403
    for headers, status in (
        ({"host": "localhost:443", "origin": "https://localhost"}, 200),  # behind a proxy that speaks TLS
        ({"host": "localhost:8443", "origin": "https://localhost"}, 403),
        ({"host": "localhost", "origin": "null"}, 403),
        ({"origin": "https://search.example.org", "sec-fetch-site": "same-origin"}, 200),
        ({"origin": "https://search.example.org", "sec-fetch-site": "cross-site"}, 403),
    ):
        assert server.post("/v1/embeddings", {"input": "a"}, headers=headers).status_code == status
    with start("--allow-origin", "https://example.org", "--allow-host", "*") as running:
        response = running.post("/v1/embeddings", {"input": "a"}, headers={"origin": "https://example.org"})
        assert response.headers["access-control-allow-origin"] == "https://example.org"
        assert running.client.get("/info", headers={"host": "embed.example.org"}).status_code == 200


def test_api_keys(start: Callable[..., RunningServer], tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("first\nsecond\n", encoding="utf-8")
    with start(
        "--api-key-file", str(tmp_path / "keys"), environment={"EMBEDKIT_API_KEY": "third"}
    ) as running:
        for key in ("first", "second", "third"):
            headers = {"authorization": f"Bearer {key}"}
            assert running.post("/v1/embeddings", {"input": "a"}, headers=headers).status_code == 200
        for headers in ({}, {"authorization": "Bearer firs"}, {"authorization": "Basic first"}):
            response = running.post("/v1/embeddings", {"input": "a"}, headers=headers)
            assert response.status_code == 401
            assert response.json()["error"]["code"] == "invalid_api_key"
        assert running.client.get("/metrics").status_code == 401
        assert running.client.get("/health").status_code == 200
        assert running.client.get("/livez").status_code == 200


def test_null_is_the_default(searching: RunningServer) -> None:
    for path, body, fields in (
        (
            "/v1/embeddings",
            {"input": "a"},
            ("encoding_format", "dimensions", "normalize", "truncate", "model"),
        ),
        ("/embed", {"inputs": "a"}, ("normalize", "truncate", "dimensions", "prompt_name")),
        ("/rerank", {"query": "a", "texts": ["b"]}, ("return_text", "raw_scores", "truncate", "top_n")),
    ):
        expected = searching.post(path, body)
        answer = searching.post(path, {**body, **dict.fromkeys(fields)})
        assert answer.status_code == 200, answer.text
        assert answer.json() == expected.json()
