"""/v1/embeddings and /v1/models, over a real socket."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running_server import RunningServer

from embedkit import Encoder
from embedkit.cli.serve import main
from embedkit.serve.errors import ApiError
from embedkit.serve.opening import Options, open_state
from embedkit.serve.token_ids import TokenDecoder

TEXTS = ["a text", "another, longer text about the weather", "", "日本語 🙂", "x " * 3000]


def vectors(answer: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    assert [item["index"] for item in answer["data"]] == list(range(len(answer["data"])))
    return np.asarray([item["embedding"] for item in answer["data"]], np.float32)


def error_of(server: RunningServer, body: Any, status: int = 400) -> Any:
    response = server.post("/v1/embeddings", body)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def test_vectors_are_bitwise_those_of_encode(server: RunningServer) -> None:
    answer = server.embed(TEXTS)
    np.testing.assert_array_equal(vectors(answer), Encoder().encode(TEXTS))
    assert answer["object"] == "list"
    assert answer["data"][0]["object"] == "embedding"
    tokens = sum(map(len, Encoder().tokenize(TEXTS)["input_ids"]))
    assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    (single,) = vectors(server.embed("a text"))
    np.testing.assert_array_equal(single, Encoder().encode("a text"))


def test_base64_is_the_arrays_own_memory(server: RunningServer) -> None:
    answer = server.embed(TEXTS, encoding_format="base64", user="somebody")
    found = [np.frombuffer(base64.b64decode(item["embedding"]), "<f4") for item in answer["data"]]
    np.testing.assert_array_equal(found, Encoder().encode(TEXTS))


@pytest.mark.parametrize("dimensions", [1, 24, 256])
def test_dimensions(server: RunningServer, dimensions: int) -> None:
    found = vectors(server.embed(TEXTS[:2], dimensions=dimensions))
    truncated = dimensions < 256
    expected = Encoder().encode(TEXTS[:2], truncate_dim=dimensions, normalize_embeddings=truncated)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    raw = vectors(server.embed(TEXTS[:2], dimensions=dimensions, normalize=False))
    np.testing.assert_array_equal(raw, Encoder().encode(TEXTS[:2], truncate_dim=dimensions))


def test_vectors_of_a_folder_that_truncates_have_length_1_where_asked(
    start: Callable[..., RunningServer], tmp_path: Path
) -> None:
    Encoder(truncate_dim=16).save(tmp_path / "small")
    with start("--model", str(tmp_path / "small"), "--threads", "1") as running:
        expected = Encoder(truncate_dim=16).encode(TEXTS[:2])
        np.testing.assert_array_equal(vectors(running.embed(TEXTS[:2])), expected)
        units = expected / np.linalg.norm(expected, axis=1, keepdims=True)
        for found in (
            vectors(running.embed(TEXTS[:2], normalize=True)),
            np.asarray(running.post("/embed", {"inputs": TEXTS[:2]}).json()),
        ):
            np.testing.assert_allclose(found, units, atol=1e-6)


def test_token_ids(server: RunningServer) -> None:
    encoder = Encoder()
    texts = ["Don't stop; it's naïve, unbelievably so!", "a", "[UNK] and 漢字"]
    ids = encoder.tokenize(texts)["input_ids"]
    expected = encoder.encode(texts)
    np.testing.assert_array_equal(vectors(server.embed(ids)), expected)
    np.testing.assert_array_equal(vectors(server.embed(ids[0]))[0], expected[0])
    without_special = [row[1:-1] for row in ids]
    np.testing.assert_array_equal(vectors(server.embed(without_special)), expected)
    assert server.embed(ids)["usage"]["prompt_tokens"] == sum(map(len, ids))


def test_the_first_token_ids_may_come_together() -> None:
    encoder = Encoder()
    rows = encoder.tokenize(["many people find water", "night"])["input_ids"]
    expected = TokenDecoder(encoder).texts(rows, "input")
    for _ in range(5):
        decoder = TokenDecoder(encoder)
        with ThreadPoolExecutor(8) as pool:
            asked = [pool.submit(decoder.texts, rows, "input") for _ in range(8)]
            assert [answer.result() for answer in asked] == [expected] * 8


def test_more_token_ids_than_a_request_may_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embedkit.serve.token_ids._MOST", 5)
    with pytest.raises(ApiError, match="input holds 6 token ids; a request may hold 5"):
        TokenDecoder(Encoder()).texts([[1, 2, 3], [4, 5, 6]], "input")


def test_token_ids_of_another_vocabulary_are_refused(server: RunningServer) -> None:
    error = error_of(server, {"input": [[1996], [1996, 99_000]]})
    assert error["param"] == "input[1]"
    assert "tiktoken" in error["message"]
    reversed_ids = Encoder().tokenize(["unbelievably"])["input_ids"][0][1:-1][::-1]
    error_of(server, {"input": [reversed_ids if len(reversed_ids) > 1 else [-1]]})


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"input": ["fine", 3]}, "input[1]", "must be a string, not a number"),
        ({"input": [None]}, "input[0]", "not null"),
        ({"input": [[1], "text"]}, "input[1]", "token ids"),
        ({"input": [1, "text"]}, "input", "token ids"),
        ({"input": [[]]}, "input[0]", "token ids"),
        ({"input": {"text": 1}}, "input", "not an object"),
        ({"input": []}, "input", "empty"),
        ({}, "input", "field required"),
        ({"input": "a", "dimensions": 0}, "dimensions", "greater than or equal to 1"),
        ({"input": "a", "dimensions": 257}, "dimensions", "from 1 to 256"),
        ({"input": "a", "dimensions": "12"}, "dimensions", "valid integer"),
        ({"input": "a", "dimensions": 1.5}, "dimensions", "valid integer"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format", "'float' or 'base64'"),
        ({"input": "a", "prompt_name": "none"}, "prompt_name", "unknown"),
        ({"input": "a", "input_type": "none"}, "input_type", "'search_query'"),
        ([1], None, "object"),
    ],
)
def test_errors_name_the_field_and_the_index(
    server: RunningServer, body: Any, param: str | None, message: str
) -> None:
    error = error_of(server, body)
    assert error["param"] == param
    assert message in error["message"]
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "valid JSON"),
        (b'{"input": "a"', "valid JSON"),
        (b'{"input": "\xff"}', "valid JSON"),
        (b'{"input": "a", "dimensions": NaN}', "dimensions"),
        (b'{"input": "a", "dimensions": 1e999}', "dimensions"),
        (b'{"input": ["a", "b\\ud800c"]}', "input[1] holds a lone surrogate at character 1"),
        (b'{"input": ' + b"[" * 30_000, "recursion"),
        (b'{"input": "a", "other": ' + b'{"a":' * 30_000, "recursion"),
    ],
)
def test_what_is_no_json(server: RunningServer, body: bytes, message: str) -> None:
    response = server.client.post("/v1/embeddings", content=body)
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]


def test_unknown_models_and_paths(server: RunningServer) -> None:
    error = error_of(server, {"input": "a", "model": "other"}, 404)
    assert error["code"] == "model_not_found"
    assert server.client.get("/v1/nothing").json()["error"]["type"] == "not_found_error"
    response = server.client.get("/v1/embeddings")
    assert response.status_code == 405
    assert "error" in response.json()


def test_models(server: RunningServer) -> None:
    (model,) = server.client.get("/v1/models").json()["data"]
    assert model["id"] == "embedkit-256-int8"
    assert server.client.get("/v1/models/embedkit-256-int8").json() == model
    assert server.client.get("/v1/models/other").status_code == 404


def test_prompts(start: Callable[..., RunningServer], tmp_path: Path) -> None:
    prompts = {"query": "question: ", "passage": "answer: "}
    Encoder(prompts=prompts).save(tmp_path / "model")
    encoder = Encoder(tmp_path / "model")
    with start("--model", f"mine={tmp_path / 'model'}") as running:
        for given, name in (
            ({"input_type": "query"}, "query"),
            ({"input_type": "search_query"}, "query"),
            ({"input_type": "passage"}, "passage"),
            ({"input_type": "search_document"}, "document"),
            ({"prompt_name": "passage", "input_type": "query"}, "passage"),
        ):
            answer = running.embed(["a text", "b"], model="mine", **given)
            np.testing.assert_array_equal(vectors(answer), encoder.encode(["a text", "b"], prompt_name=name))
        assert answer["model"] == "mine"
        named = running.post("/embed", {"inputs": ["a text"], "prompt_name": "passage"}).json()
        np.testing.assert_array_equal(np.float32(named), encoder.encode(["a text"], prompt_name="passage"))
        prompted = [prompts["passage"] + text for text in ("a text", "b")]
        count = sum(map(len, encoder.tokenize(prompted)["input_ids"]))
        assert answer["usage"]["total_tokens"] == count


def test_prompts_of_the_command(start: Callable[..., RunningServer], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    own = {"query": "its own: ", "search_query": "its own: ", "passage": "its own: ", "other": "other: "}
    Encoder(prompts=own).save(folder)
    models = ["--model", f"a={folder}", "--model", f"b={folder}", "--model", f"c={folder}"]
    each = ["--query-prompt", "q: ", "--query-prompt", "", "--query-prompt", "q: "]
    with start(*models, *each, "--document-prompt", "d: ") as running:
        for model, query in (("a", "q: "), ("b", ""), ("c", "q: ")):
            for given, prompt in (
                ({"input_type": "query"}, query),
                ({"input_type": "search_query"}, query),
                ({"input_type": "passage"}, "d: "),
                ({"prompt_name": "passage"}, "its own: "),
                ({"prompt_name": "other"}, "other: "),
                ({}, ""),
            ):
                found = vectors(running.embed(["a text"], model=model, **given))
                np.testing.assert_array_equal(found, Encoder(folder).encode(["a text"], prompt=prompt))
        state = running.client.get("/metrics").text
    loaded = re.findall(r'^embedkit_queue_requests\{model="(\w)"\}', state, re.MULTILINE)
    assert loaded == ["a", "b"]  # "c" is "a" under another name


def test_prompts_that_cannot_be_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--index", str(tmp_path), "--document-prompt", "d: "]) == 2
    assert "--document-prompt: the model of" in capsys.readouterr().err
    assert main(["--model", "a", "--query-prompt", "d: ", "--query-prompt", "e: "]) == 2
    assert "give --query-prompt once, or once for each --model" in capsys.readouterr().err


def test_prompts_of_too_few_models_leave_none_out() -> None:
    with pytest.raises(ValueError, match="shorter"):
        open_state(Options(models=("a", "b"), prompts=({},)))


def test_a_known_model_without_its_prompts_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "e5-small-v2"
    Encoder().save(model)
    monkeypatch.setattr("embedkit.serve.server.run", lambda state, *_, **__: state.close())
    assert main(["--model", f"a={model}", "--port", "0"]) == 0
    assert "e5-small-v2 is meant for prompts" in capsys.readouterr().err
    assert main(["--model", f"a={model}", "--port", "0", "--query-prompt", "", "--document-prompt", ""]) == 0
    assert "is meant for" not in capsys.readouterr().err


def test_long_texts_are_truncated_or_refused(
    server: RunningServer, start: Callable[..., RunningServer]
) -> None:
    long, fitting = "word " * 511, "word " * 510
    error = error_of(server, {"input": ["a", fitting, long], "truncate": False})
    assert error["param"] == "input[2]"
    assert error["code"] == "text_too_long"
    server.embed([fitting], truncate=False)
    refused = server.post("/embed", {"inputs": ["a", long], "truncate": False})
    assert refused.status_code == 400 and "inputs[1]" in refused.text
    with start("--on-overflow", "error") as strict:
        error_of(strict, {"input": long})
        strict.embed(long, truncate=True)
