"""The clients that people have, against `embedkit-serve` on a real socket."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import pytest

from embedkit import Encoder

TEXTS = ["Boil the lentils for half an hour.", "Restart the server after the update.", "naïve 漢字"]
MODEL = "embedkit-256-int8"
KEY = "a-key"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    code = "import sys; from embedkit.cli.serve import main; sys.exit(main(sys.argv[1:]))"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "--port", "0", "--api-key", KEY], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().split()[-1] + "/v1"
    finally:
        process.terminate()
        assert process.wait(30) == 0
        process.stdout.close()


@pytest.fixture(scope="module")
def expected() -> np.ndarray[Any, np.dtype[np.float32]]:
    vectors: np.ndarray[Any, np.dtype[np.float32]] = Encoder().encode(TEXTS)
    return vectors


@pytest.fixture
def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=url, api_key=KEY, max_retries=0)


def vectors(answer: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.asarray([item.embedding for item in answer.data], np.float32)


def test_openai(client: openai.OpenAI, expected: np.ndarray[Any, Any]) -> None:
    answer = client.embeddings.create(model=MODEL, input=TEXTS)  # base64, as the client asks for
    np.testing.assert_array_equal(vectors(answer), expected)
    assert answer.usage.prompt_tokens == sum(map(len, Encoder().tokenize(TEXTS)["input_ids"]))
    answer = client.embeddings.create(model=MODEL, input=TEXTS[0], encoding_format="float", user="someone")
    np.testing.assert_array_equal(vectors(answer), expected[:1])
    ids = Encoder().tokenize(TEXTS)["input_ids"]
    np.testing.assert_array_equal(vectors(client.embeddings.create(model=MODEL, input=ids)), expected)
    answer = client.embeddings.create(model=MODEL, input=TEXTS, dimensions=32)
    short = Encoder().encode(TEXTS, truncate_dim=32, normalize_embeddings=True)
    np.testing.assert_array_equal(vectors(answer), short)
    answer = client.embeddings.create(model=MODEL, input=TEXTS, extra_body={"input_type": "query"})
    np.testing.assert_array_equal(vectors(answer), Encoder().encode_query(TEXTS))
    assert [model.id for model in client.models.list()] == [MODEL]


def test_openai_knows_the_errors(client: openai.OpenAI, url: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.embeddings.create(model=MODEL, input=["fine", 3])  # type: ignore[list-item]
    assert refused.value.param == "input[1]"
    with pytest.raises(openai.NotFoundError) as missing:
        client.embeddings.create(model="other", input="a")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=url, api_key="wrong", max_retries=0).models.list()


def test_openai_async(url: str, expected: np.ndarray[Any, Any]) -> None:
    import asyncio

    async def many() -> list[Any]:
        async with openai.AsyncOpenAI(base_url=url, api_key=KEY) as client:
            return await asyncio.gather(
                *(client.embeddings.create(model=MODEL, input=TEXTS[n % 3]) for n in range(60))
            )

    found = np.concatenate([vectors(answer) for answer in asyncio.run(many())])
    np.testing.assert_array_equal(found, np.tile(expected, (20, 1)))


def test_langchain(url: str, expected: np.ndarray[Any, Any]) -> None:
    from langchain_openai import OpenAIEmbeddings

    # Else it sends tiktoken's ids, which are another vocabulary's.
    embeddings = OpenAIEmbeddings(model=MODEL, base_url=url, api_key=KEY, check_embedding_ctx_length=False)
    np.testing.assert_array_equal(np.float32(embeddings.embed_documents(TEXTS)), expected)
    np.testing.assert_array_equal(np.float32(embeddings.embed_query(TEXTS[0])), expected[0])


def test_llama_index(url: str, expected: np.ndarray[Any, Any]) -> None:
    from llama_index.embeddings.openai import OpenAIEmbedding

    embedding = OpenAIEmbedding(model_name=MODEL, api_base=url, api_key=KEY)
    np.testing.assert_array_equal(np.float32(embedding.get_text_embedding_batch(TEXTS)), expected)
    np.testing.assert_array_equal(np.float32(embedding.get_query_embedding(TEXTS[0])), expected[0])


def test_chroma(url: str, expected: np.ndarray[Any, Any]) -> None:
    from chromadb.utils.embedding_functions import OpenAIEmbeddingFunction

    function = OpenAIEmbeddingFunction(api_key=KEY, model_name=MODEL, api_base=url)
    np.testing.assert_array_equal(function(TEXTS), expected)


def test_haystack(url: str, expected: np.ndarray[Any, Any]) -> None:
    from haystack import Document
    from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder
    from haystack.utils import Secret

    options: dict[str, Any] = {"api_key": Secret.from_token(KEY), "model": MODEL, "api_base_url": url}
    found = OpenAITextEmbedder(**options).run(TEXTS[0])["embedding"]
    np.testing.assert_array_equal(np.float32(found), expected[0])
    documents = [Document(content=text) for text in TEXTS]
    embedded = OpenAIDocumentEmbedder(**options, progress_bar=False).run(documents)["documents"]
    np.testing.assert_array_equal(np.float32([document.embedding for document in embedded]), expected)
