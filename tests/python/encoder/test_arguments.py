"""Invalid input, each case with its message; and input that must be accepted."""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedkit import Encoder

Make = Callable[..., Path]


@pytest.fixture(scope="module")
def encoder(make_model: Make) -> Encoder:
    return Encoder(make_model(prompts={"query": "query: "}))


@pytest.mark.parametrize(
    ("sentences", "message"),
    [
        (None, "expected a str or a list of str, got NoneType"),
        (b"bytes", r"got bytes: decode it first, e\.g\. text\.decode\('utf-8'\)"),
        (bytearray(b"x"), "got bytearray: decode"),
        (5, "got int"),
        ({"a": 1}, "got dict"),
        ({"a", "b"}, "got set"),
        (["a", None], r"texts\[1\] is NoneType, not str"),
        (["a", "b", b"c"], r"texts\[2\] is bytes, not str: decode it first"),
        ([1], r"texts\[0\] is int, not str"),
        ([["a"]], r"texts\[0\] is list, not str"),
        (("a", float("nan")), r"texts\[1\] is float, not str"),
        (np.array("abc"), r"got ndarray without dimensions: get the text with \.item\(\)"),
        (np.array([1, 2]), r"texts\[0\] is \w*int\w*, not str"),
    ],
)
def test_non_string_texts(encoder: Encoder, sentences: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        encoder.encode(sentences)


def test_texts_given_twice(encoder: Encoder) -> None:
    with pytest.raises(TypeError, match="two names for the texts"):
        encoder.encode("a", inputs="b")


@pytest.mark.parametrize(("text", "position"), [("\ud800", 0), ("ab\udfff", 2), ("\ud83d \ude00", 0)])
@pytest.mark.parametrize("options", [{}, {"prompt_name": "query"}])
def test_lone_surrogates(encoder: Encoder, text: str, position: int, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"texts\[1\] holds a lone surrogate at position {position}"):
        encoder.encode(["fine", text], **options)
    with pytest.raises(ValueError, match=r"texts\[5\] holds a lone surrogate"):
        list(encoder.encode_iter(["fine"] * 5 + [text], block_size=2))


def test_a_lone_surrogate_of_the_prompt_is_not_blamed_on_the_texts(make_model: Make) -> None:
    folder = make_model(include_prompt=False)
    for options in ({"prompt": "a\ud800"}, {"prompt_name": "query"}):
        with pytest.raises(ValueError, match=r"^the prompt holds a lone surrogate at position 1"):
            Encoder(folder, prompts={"query": "a\ud800"}).encode(["fine"], **options)  # type: ignore[arg-type]


def test_the_remedy_for_surrogates_works(encoder: Encoder) -> None:
    repaired = "\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert repaired == "😀" and encoder.encode(repaired).shape == (32,)


def test_texts_that_are_valid(encoder: Encoder) -> None:
    assert np.isfinite(encoder.encode(["", " ", "\0", "\n", "\U0010ffff"])).all()
    np.testing.assert_array_equal(encoder.encode(""), encoder.encode(" \t"))  # [CLS] [SEP]
    assert encoder.encode(iter(["a", "b"])).shape == (2, 32)
    assert encoder.encode(np.array(["a", "b"], dtype=object)).shape == (2, 32)
    assert encoder.encode(np.str_("one")).shape == (32,)


def test_a_very_long_text(make_model: Make) -> None:
    encoder = Encoder(make_model())
    with pytest.warns(
        UserWarning, match="the first of the texts is longer than max_length=64 tokens, and truncated"
    ):
        vectors = encoder.encode(["the weather " * 4_200_000, "short"])  # 50 MB
    np.testing.assert_array_equal(vectors[1], encoder.encode("short"))
    assert np.isfinite(vectors).all()


def test_truncation_is_reported_once_and_counted(make_model: Make) -> None:
    encoder = Encoder(make_model(), max_length=4)
    with pytest.warns(
        UserWarning, match=r"2 of the first 3 texts .*max_length=4.*on_overflow='window'"
    ) as caught:
        encoder.encode(["the a of", "the a of and", "the"])
    assert caught[0].filename == __file__  # the line that called embedkit
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encoder.encode(["the a of"])
    report = encoder.describe()
    assert (report["texts"], report["truncated"], report["max_length"]) == (4, 3, 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"prompt_name": "nope"},
            r"unknown prompt_name='nope'; this model's prompts are 'query', 'document'",
        ),
        ({"truncate_dim": 33}, "truncate_dim=33 is larger than the model's dimension 32"),
        ({"truncate_dim": 0}, "truncate_dim must be a positive integer, not 0"),
        ({"batch_size": 0}, "batch_size must be a positive integer, not 0"),
        ({"batch_size": -1}, "batch_size must be a positive integer, not -1"),
        ({"batch_size": 2**70}, "batch_size must be at most 2147483647, not 1180591620717411303424"),
        ({"output_dtype": "float16"}, "unknown output_dtype='float16'; expected one of 'float32', 'int8'"),
        ({"precision": "fp32"}, "unknown output_dtype='fp32'"),
        ({"precision": "int8", "output_dtype": "binary"}, "'binary' and precision='int8' differ; give one"),
        ({"precision": "int8"}, "int8 embeddings need the range of each dimension, and none are saved"),
        ({"precision": "uint8"}, r"give ranges=, e\.g\. numpy\.stack"),
        ({"precision": "int8", "ranges": np.zeros((2, 5))}, r"shape \(2, 5\), expected \(2, 32\)"),
        ({"output_value": None}, "unknown output_value=None; expected one of 'sentence_embedding'"),
        ({"output_value": "logits"}, "unknown output_value='logits'"),
        (
            {"output_value": "token_embeddings", "precision": "int8"},
            "'int8' is for sentence embeddings",
        ),
        ({"pool": {"input": 1}}, r"encode\(pool=\.\.\.\) is not supported: .* Encoder\(threads=\.\.\.\)"),
        ({"chunk_size": 100}, r"encode\(chunk_size=\.\.\.\) is not supported: .* encode_iter"),
        ({"processing_kwargs": {"text": {}}}, r"\(processing_kwargs=.*Encoder\(max_length=\.\.\.\) instead"),
        ({"device": "cuda"}, r"device='cuda': this encoder is on 'cpu'; .* Encoder\(device=\.\.\.\)"),
        ({"device": "tpu"}, "unknown device='tpu'"),
        ({"device": ["cpu", "cpu"]}, r"a list is for CUDA devices, .* Encoder\(threads=\.\.\.\)"),
    ],
)
def test_wrong_options_of_encode(encoder: Encoder, options: dict[str, Any], message: str) -> None:
    for sentences in (["a"], []):  # the same error for every output
        with pytest.raises(ValueError, match=message):
            encoder.encode(sentences, **options)


@pytest.mark.parametrize(
    "options",
    [{"batch_size": 1.5}, {"truncate_dim": "8"}, {"prompt": 5}, {"batch": 8}, {"batch_size": "x"}],
)
def test_options_of_a_wrong_type(encoder: Encoder, options: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=next(iter(options))):
        encoder.encode(["a"], **options)


def test_numpy_integers_are_integers(encoder: Encoder) -> None:
    assert encoder.encode("a", truncate_dim=np.int64(5), batch_size=np.int32(2)).shape == (5,)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "mps"}, "unknown device='mps'; expected one of 'auto', 'cpu', 'cuda', 'cuda:0'"),
        ({"device": "cuda:x"}, "unknown device='cuda:x'"),
        ({"device": ["cuda:0", "cpu"]}, "a list is for CUDA devices"),
        ({"device": []}, r"device=\[\] is empty"),
        ({"precision": "fp16"}, "precision='fp16' is for CUDA devices; a CPU has 'fp32', 'bf16' and 'int8'"),
        ({"precision": "fp4"}, "unknown precision='fp4'; expected one of 'auto', 'fp32', 'bf16', 'int8'"),
        ({"threads": 0}, "threads must be a positive integer, not 0"),
        ({"threads": -2}, "threads must be a positive integer, not -2"),
        ({"threads": True}, "threads must be a positive integer, not True"),
        ({"threads": 2**31}, "threads must be at most 1024, not 2147483648"),
        ({"trust_remote_code": True}, r"Encoder\(trust_remote_code=\.\.\.\) is not supported: .* never runs"),
        ({"backend": "torch"}, "backend='torch' is not supported"),
        ({"backend": "tf"}, "unknown backend='tf'; expected one of 'auto', 'onnx'"),
        ({"onnx_file": "model.onnx"}, "onnx_file='model.onnx' is for backend='onnx'"),
        ({"max_length": 2}, r"max_length must be from 3 \(2 special tokens and one token of text\) to 64"),
        ({"max_length": 65}, "to 64 .* not 65"),
        (
            {"on_overflow": "ignore"},
            "unknown on_overflow='ignore'; expected one of 'truncate', 'error', 'window'",
        ),
        ({"similarity_fn_name": "max"}, "unknown similarity_fn_name='max'; expected one of 'cosine'"),
        ({"truncate_dim": 33}, "truncate_dim=33 is larger"),
        ({"default_prompt_name": "nope"}, "unknown prompt_name='nope'"),
    ],
)
def test_wrong_options_of_the_constructor(make_model: Make, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Encoder(make_model(), **options)


def test_wrong_types_of_the_constructor(make_model: Make) -> None:
    with pytest.raises(TypeError, match=r"threads must be a positive integer, not 1\.5"):
        Encoder(make_model(), threads=1.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="prompts"):
        Encoder(make_model(), prompts={"query": 5})  # type: ignore[dict-item]
    encoder = Encoder(make_model(), prompts={"q": "query: "})
    with pytest.raises(TypeError, match=r"prompts\['q'\] must be a str, not int"):
        encoder.prompts = {"q": 3}  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="prompts must be a dict of names and texts, not NoneType"):
        encoder.prompts = None  # type: ignore[assignment]
    assert encoder.prompts["q"] == "query: "
    with pytest.raises(TypeError, match="unexpected keyword argument 'thread'"):
        Encoder(make_model(), thread=None)
    with pytest.raises(TypeError, match="two names for the model"):
        Encoder(make_model(), model_name_or_path=make_model())


def test_neutral_arguments_of_sentence_transformers(make_model: Make) -> None:
    encoder = Encoder(model_name_or_path=make_model(), trust_remote_code=False, model_kwargs={})
    assert encoder.encode("a", pool=None, chunk_size=None, task=None, processing_kwargs=None).shape == (32,)
    assert encoder.encode_query("a", pool=None).shape == (32,)


def test_setters_check(make_model: Make) -> None:
    encoder = Encoder(make_model())
    with pytest.raises(ValueError, match="max_length must be from 3"):
        encoder.max_seq_length = 1
    assert encoder.max_seq_length == 64
    with pytest.raises(ValueError, match="unknown similarity_fn_name='nonsense'; expected one of 'cosine'"):
        encoder.similarity_fn_name = "nonsense"
    encoder.similarity_fn_name = "dot"
    assert encoder.similarity([2.0, 0.0], [2.0, 0.0]) == 4
    encoder.similarity_fn_name = None  # type: ignore[assignment]
    assert encoder.similarity_fn_name == "cosine" and encoder.similarity([2.0, 0.0], [2.0, 0.0]) == 1


def test_a_tokenizer_of_another_model_is_refused(make_model: Make, tmp_path: Path) -> None:
    import json
    import shutil

    folder = shutil.copytree(make_model(), tmp_path / "copy")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["##extra"] = len(tokenizer["model"]["vocab"])
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ValueError, match="the files are of different models"):
        Encoder(folder)


def test_an_added_token_without_a_vector_is_text(make_model: Make, tmp_path: Path) -> None:
    import json
    import shutil

    folder = shutil.copytree(make_model(), tmp_path / "copy")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    image = {"id": len(tokenizer["model"]["vocab"]), "content": "<image_soft_token>", "special": True}
    flags = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False}
    tokenizer["added_tokens"].append(image | flags)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    text = "the <image_soft_token> of it"
    np.testing.assert_array_equal(Encoder(folder).encode(text), Encoder(make_model()).encode(text))


def test_encode_iter_takes_a_stream(encoder: Encoder) -> None:
    texts = [f"the {i} of {i * 7}" for i in range(50)]
    blocks = list(encoder.encode_iter((text for text in texts), block_size=20))
    assert [len(block) for block in blocks] == [20, 20, 10]
    np.testing.assert_array_equal(np.vstack(blocks), encoder.encode(texts))
    assert list(encoder.encode_iter([])) == []
    packed = next(encoder.encode_iter(texts, output_dtype="ubinary", truncate_dim=9))
    assert packed.shape == (50, 2) and packed.dtype == np.uint8


@pytest.mark.parametrize(
    "options",
    [
        {"normalize_embeddings": True},
        {"prompt": "query document: "},
        {"prompt_name": "query"},
        {"output_dtype": "int8", "ranges": np.array([[-0.2] * 32, [0.3] * 32])},
    ],
    ids=lambda options: next(reversed(options)),
)
def test_encode_iter_takes_the_options_of_encode(encoder: Encoder, options: dict[str, Any]) -> None:
    texts = [f"the {i} of {i * 7}" for i in range(50)]
    streamed = np.vstack(list(encoder.encode_iter(texts, block_size=20, **options)))
    expected = encoder.encode(texts, **options)
    assert streamed.dtype == expected.dtype
    np.testing.assert_array_equal(streamed, expected)
    assert not np.array_equal(streamed, encoder.encode(texts))


def test_a_prompt_takes_precedence_over_its_name(encoder: Encoder) -> None:
    both = encoder.encode("the weather", prompt_name="query", prompt="document: ")
    np.testing.assert_array_equal(both, encoder.encode("the weather", prompt="document: "))
    assert not np.array_equal(both, encoder.encode("the weather", prompt_name="query"))


def test_encode_iter_reads_no_more_than_it_needs(encoder: Encoder) -> None:
    read = 0

    def endless() -> Iterator[str]:
        nonlocal read
        while True:
            read += 1
            yield "text"

    blocks = encoder.encode_iter(endless(), block_size=10)
    assert read == 0
    next(blocks)
    assert read == 10
    next(blocks)
    assert read == 20
    blocks.close()  # type: ignore[attr-defined]
    with pytest.raises(StopIteration):
        next(blocks)


def test_encode_iter_leaves_the_rest_of_a_stream(encoder: Encoder) -> None:
    stream = iter(["one", "two", "three", "four"])
    blocks = encoder.encode_iter(stream, block_size=2)
    next(blocks)
    blocks.close()  # type: ignore[attr-defined]
    assert list(stream) == ["three", "four"]


def test_encode_iter_bounds_the_characters_of_a_block(encoder: Encoder) -> None:
    blocks = encoder.encode_iter(["a" * 1_500_000] * 3 + ["b" * 9_000_000, "c"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert [len(block) for block in blocks] == [2, 1, 1, 1]


def test_an_error_of_the_stream_passes_through(encoder: Encoder) -> None:
    def broken() -> Iterator[str]:
        yield from ["a"] * 5
        raise OSError("disk gone")

    blocks = encoder.encode_iter(broken(), block_size=4)
    assert len(next(blocks)) == 4
    with pytest.raises(OSError, match="disk gone"):
        next(blocks)


def test_encode_iter_checks_when_called(encoder: Encoder) -> None:
    with pytest.raises(TypeError, match="not a str"):
        encoder.encode_iter("text")
    with pytest.raises(ValueError, match="block_size must be a positive integer"):
        encoder.encode_iter([], block_size=0)
    with pytest.raises(ValueError, match="prompt_name='nope'"):
        encoder.encode_iter([], prompt_name="nope")
    with pytest.raises(TypeError, match="NoneType"):
        encoder.encode_iter(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"texts\[3\] is int, not str"):
        list(encoder.encode_iter(["a", "b", "c", 4], block_size=2))  # type: ignore[list-item]


def test_closed_encoder(make_model: Make) -> None:
    with Encoder(make_model()) as encoder:
        assert "dimension=32" in repr(encoder)
        stream = encoder.encode_iter(["a"] * 10, block_size=2)
        next(stream)
    encoder.close()  # twice is fine
    assert "closed" in repr(encoder)
    for use in (
        lambda: encoder.encode("a"),
        lambda: encoder.encode([]),
        lambda: next(stream),
        lambda: encoder.describe(),
        lambda: encoder.tokenize(["a"]),
        lambda: encoder.save("folder"),
        lambda: encoder.get_embedding_dimension(),
    ):
        with pytest.raises(ValueError, match="this Encoder is closed; open a new one"):
            use()


def test_missing_torch_has_a_remedy(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told before the texts are encoded."""
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(Encoder, "_encode_all", None)
    with pytest.raises(ImportError, match="pip install torch, or leave convert_to_numpy=True"):
        encoder.encode("a", convert_to_tensor=True)


def test_progress_bar_only_on_a_terminal(
    encoder: Encoder, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    encoder.encode(["a"] * 10, show_progress_bar=True)
    encoder.encode(["a"] * 10)
    with caplog.at_level("INFO", logger="embedkit"):
        encoder.encode(["a"] * 10)
    captured = capfd.readouterr()
    assert captured.out == "" and captured.err == ""


def test_progress_bar_in_a_notebook(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its stderr is no terminal."""
    stream = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})()
    monkeypatch.setattr(sys, "stderr", stream)
    for show in (None, False):
        encoder.encode(["a", "b"], show_progress_bar=show)
    assert stream.getvalue() == ""
    encoder.encode(["a", "b"], show_progress_bar=True)
    assert "2/2" in stream.getvalue()


def test_progress_bar_counts_texts(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    import tqdm.auto

    seen: list[Any] = []

    class Bar:
        def __init__(self, **options: Any) -> None:
            seen.append(options)

        def __enter__(self) -> Bar:
            return self

        def __exit__(self, *exception: object) -> None:
            seen.append("closed")

        def update(self, count: int) -> None:
            seen.append(count)

    monkeypatch.setattr(tqdm.auto, "tqdm", Bar)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    encoder.encode(["a"] * 1500, show_progress_bar=True)
    assert seen[0]["total"] == 1500
    assert sum(seen[1:-1]) == 1500 and seen[-1] == "closed"
