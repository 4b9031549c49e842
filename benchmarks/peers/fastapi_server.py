"""What people write themselves: FastAPI and sentence-transformers. `python fastapi_server.py MODEL PORT`."""

import sys
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer

app = FastAPI()
model = SentenceTransformer(sys.argv[1], device="cpu")


class Request(BaseModel):
    """What is used of OpenAI's request."""

    input: str | list[str]
    model: str


@app.get("/health")
def health() -> dict[str, str]:
    return {"status": "ok"}


@app.post("/v1/embeddings")
def embeddings(request: Request) -> dict[str, Any]:  # on a thread of Starlette's pool
    texts = [request.input] if isinstance(request.input, str) else request.input
    vectors = model.encode(texts)
    data = [
        {"object": "embedding", "index": index, "embedding": vector.tolist()}
        for index, vector in enumerate(vectors)
    ]
    return {"object": "list", "data": data, "model": request.model}


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="error")
