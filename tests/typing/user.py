"""What a type checker sees of a program that uses embedkit; checked by `make lint`, never run."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from typing_extensions import assert_type

from embedkit import CrossEncoder, Encoder

encoder = Encoder("model", precision="int8", threads=2)
encoder.max_seq_length = 128
vectors = encoder.encode(["a", "b"])
assert_type(vectors, npt.NDArray[Any])
assert_type(encoder.encode("a", task="query", normalize_embeddings=True), npt.NDArray[Any])
assert_type(encoder.encode("a", output_value="token_embeddings"), npt.NDArray[np.float32])
assert_type(encoder.encode(["a"], output_value="token_embeddings"), list[npt.NDArray[np.float32]])
assert_type(encoder.similarity(vectors, vectors), npt.NDArray[np.float32])
encoder.encode(["a"], output_dtype="int4")  # type: ignore[call-overload]
encoder.save("folder", "int8")
encoder.save(1, nonsense=3)  # type: ignore[arg-type, call-arg]
encoder.save_pretrained("folder")
with Encoder() as opened:
    assert_type(opened, Encoder)
reranker = CrossEncoder("model")
reranker.max_seq_length = 128
assert_type(reranker.predict([("a", "b")]), npt.NDArray[np.float32])
assert_type(reranker.predict([["a", "b"]]), npt.NDArray[np.float32])
assert_type(reranker.predict(("a", "b")), Any)
assert_type(reranker.predict(["a", "b"]), Any)
assert_type(reranker.predict(tuple("ab")), Any)
assert_type(reranker.predict(inputs=("a", "b")), Any)
assert_type(reranker.predict(inputs=[("a", "b")]), npt.NDArray[np.float32])
