"""`Encoder.encode` against sentence-transformers on the same folder."""

from __future__ import annotations

import copy
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedkit.encoder
from embedkit import Encoder

MODES = ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
Make = Callable[..., Path]
Load = Callable[[Path], Any]


def unit(vectors: np.ndarray) -> np.ndarray:
    exact = vectors.astype(np.float64)
    return exact / np.linalg.norm(exact, axis=-1, keepdims=True)


def assert_same_vectors(result: np.ndarray, expected: np.ndarray) -> None:
    """Cosine >= 0.999999 and differences <= 2e-6 after normalization."""
    assert result.shape == expected.shape and result.dtype == np.float32
    a, b = unit(result), unit(expected)
    assert (a * b).sum(axis=-1).min() >= 0.999999
    assert np.abs(a - b).max() <= 2e-6
    np.testing.assert_allclose(np.linalg.norm(result, axis=-1), np.linalg.norm(expected, axis=-1), 1e-5, 1e-6)


@pytest.mark.filterwarnings("ignore:.*longer than max_length")
class TestAgainstSentenceTransformers:
    @pytest.mark.parametrize("mode", MODES)
    def test_pooling(self, make_model: Make, reference: Load, texts: list[str], mode: str) -> None:
        folder = make_model(pooling=mode)
        assert_same_vectors(Encoder(folder).encode(texts), reference(folder).encode(texts))

    def test_several_modes_are_concatenated_in_their_order(
        self, make_model: Make, reference: Load, texts: list[str]
    ) -> None:
        folder = make_model(pooling=("lasttoken", "mean", "cls"))
        result = Encoder(folder).encode(texts)
        assert result.shape == (len(texts), 96)
        assert_same_vectors(result, reference(folder).encode(texts))

    @pytest.mark.parametrize("activation", ["Identity", "Tanh", "GELU", "ReLU", "Sigmoid", "SiLU"])
    @pytest.mark.parametrize("bias", [True, False])
    def test_dense(
        self, make_model: Make, reference: Load, texts: list[str], activation: str, bias: bool
    ) -> None:
        folder = make_model(dense=((24, activation, bias),))
        assert_same_vectors(Encoder(folder).encode(texts), reference(folder).encode(texts))

    def test_two_dense_and_normalize(self, make_model: Make, reference: Load, texts: list[str]) -> None:
        folder = make_model(
            pooling=("cls", "max"), dense=((40, "GELU", True), (17, "Tanh", False)), normalize=True
        )
        result = Encoder(folder).encode(texts)
        np.testing.assert_allclose(np.linalg.norm(result, axis=1), 1, rtol=1e-6)
        assert_same_vectors(result, reference(folder).encode(texts))

    @pytest.mark.parametrize(
        "shape",
        [
            {"hidden": 48, "heads": 3, "layers": 1, "intermediate": 80, "hidden_act": "relu"},
            {"hidden": 24, "heads": 2, "layers": 3, "intermediate": 100, "hidden_act": "gelu_new"},
            {"hidden": 384, "heads": 12, "layers": 6, "intermediate": 1536, "max_positions": 128},
        ],
    )
    def test_shapes(self, make_model: Make, reference: Load, texts: list[str], shape: dict[str, Any]) -> None:
        folder = make_model(**shape)
        assert_same_vectors(Encoder(folder).encode(texts[:120]), reference(folder).encode(texts[:120]))

    def test_long_sequences(self, make_model: Make, reference: Load) -> None:
        """Around the sizes at which attention and the products use other blocks."""
        folder = make_model(hidden=384, heads=12, layers=2, intermediate=1536, max_positions=512)
        words = ["the", "weather", "is", "lovely", "today", "and", "people", "are", "out"] * 60
        lengths = [47, 48, 49, 127, 128, 129, 257, 511, 512]  # [CLS] and [SEP] counted
        long_texts = [" ".join(words[i : i + length - 2]) for i, length in enumerate(lengths)]
        encoder = Encoder(folder)
        assert [len(ids) for ids in encoder.tokenize(long_texts)["input_ids"]] == lengths
        expected = reference(folder).encode(long_texts)
        assert_same_vectors(encoder.encode(long_texts), expected)
        result = Encoder(folder, precision="int8").encode(long_texts)
        # Random weights are harder on eight bits than trained ones (test_real_models.py holds those).
        assert (unit(result) * unit(expected)).sum(axis=1).min() >= 0.99

    def test_tokenizers_that_are_not_wordpiece(
        self, make_model: Make, reference: Load, texts: list[str], tmp_path: Path
    ) -> None:
        tokenizers = pytest.importorskip("tokenizers")
        transformers = pytest.importorskip("transformers")
        folder = Path(shutil.copytree(make_model(), tmp_path / "copy"))
        size = json.loads((folder / "config.json").read_text())["vocab_size"]
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        unigram = tokenizers.Tokenizer(tokenizers.models.Unigram())
        unigram.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
        trainer = tokenizers.trainers.UnigramTrainer(
            vocab_size=size, special_tokens=special, unk_token="[UNK]", show_progress=False
        )
        unigram.train_from_iterator(texts, trainer)
        unigram.post_processor = tokenizers.processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B [SEP]",
            special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
        )
        names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
        fast = transformers.PreTrainedTokenizerFast(
            tokenizer_object=unigram, model_max_length=64, **dict(zip(names, special, strict=True))
        )
        fast.save_pretrained(folder)
        encoder = Encoder(folder, prompts={"query": "the day "})
        assert encoder.describe()["tokenizer"] == "core"
        assert_same_vectors(encoder.encode(texts), reference(folder).encode(texts))
        tokenize, encode = encoder.query_steps()
        np.testing.assert_array_equal(encode(tokenize(texts))[0], encoder.encode_query(texts))

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
    def test_half_weights(self, make_model: Make, reference: Load, texts: list[str], dtype: str) -> None:
        folder = make_model(dtype=dtype)
        assert_same_vectors(Encoder(folder).encode(texts), reference(folder).encode(texts))

    @pytest.mark.parametrize("normalize", [True, False])
    @pytest.mark.parametrize("dimension", [None, 1, 13, 24])
    def test_truncation_comes_before_normalization(
        self, make_model: Make, reference: Load, texts: list[str], normalize: bool, dimension: int | None
    ) -> None:
        folder = make_model(dense=((24, "Tanh", True),), normalize=True)
        options: dict[str, Any] = {"normalize_embeddings": normalize, "truncate_dim": dimension}
        result = Encoder(folder).encode(texts, **options)
        assert_same_vectors(result, reference(folder).encode(texts, **options))

    def test_truncate_dim_of_folder_and_constructor(
        self, make_model: Make, reference: Load, texts: list[str]
    ) -> None:
        folder = make_model(truncate_dim=9)
        encoder = Encoder(folder)
        assert encoder.get_embedding_dimension() == encoder.get_sentence_embedding_dimension() == 9
        assert_same_vectors(encoder.encode(texts), reference(folder).encode(texts))
        assert Encoder(folder, truncate_dim=5).encode("a").shape == (5,)
        assert encoder.encode("a", truncate_dim=32).shape == (32,)

    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("include_prompt", [True, False])
    def test_prompts(
        self, make_model: Make, reference: Load, texts: list[str], mode: str, include_prompt: bool
    ) -> None:
        folder = make_model(
            pooling=mode,
            include_prompt=include_prompt,
            prompts={"query": "query: ", "long": "the of and to " * 5},
        )
        encoder, expected = Encoder(folder), reference(folder)
        for options in ({"prompt_name": "query"}, {"prompt_name": "long"}, {"prompt": "instruction : "}):
            assert_same_vectors(encoder.encode(texts, **options), expected.encode(texts, **options))

    def test_prompt_methods(self, make_model: Make, reference: Load, texts: list[str]) -> None:
        folder = make_model(
            prompts={"query": "query: ", "passage": "passage: ", "x": "day "}, default_prompt_name="x"
        )
        encoder, expected, few = Encoder(folder), reference(folder), texts[:20]
        assert_same_vectors(encoder.encode(few), expected.encode(few))
        assert_same_vectors(encoder.encode_query(few), expected.encode_query(few))
        assert_same_vectors(encoder.encode_document(few), expected.encode_document(few))
        assert_same_vectors(encoder.encode_query(few, prompt_name="x"), expected.encode(few, prompt_name="x"))
        assert_same_vectors(encoder.encode(few, prompt=""), expected.encode(few, prompt=""))
        for model in (encoder, expected):
            del model.prompts["document"]
        assert_same_vectors(encoder.encode_document(few), expected.encode(few, prompt="passage: "))
        assert_same_vectors(encoder.encode_document(few), expected.encode_document(few))
        expected.prompts["document"] = ""  # shared with other tests
        named = Encoder(folder, prompts={"document": "the "}, default_prompt_name="document")
        assert_same_vectors(named.encode(few), expected.encode(few, prompt="the "))
        assert_same_vectors(named.encode_document(few), expected.encode(few, prompt="the "))

    def test_max_length(self, make_model: Make, reference: Load, texts: list[str]) -> None:
        folder = make_model(max_seq_length=12)
        encoder, expected = Encoder(folder), reference(folder)
        assert encoder.max_seq_length == expected.max_seq_length == 12
        assert_same_vectors(encoder.encode(texts), expected.encode(texts))
        encoder.max_seq_length = 7
        expected.max_seq_length = 7
        try:
            assert_same_vectors(encoder.encode(texts), expected.encode(texts))
            assert_same_vectors(Encoder(folder, max_length=7).encode(texts), expected.encode(texts))
        finally:
            expected.max_seq_length = 12

    def test_traps_of_the_folder(
        self, make_model: Make, reference: Load, texts: list[str], tmp_path: Path
    ) -> None:
        """sentence_bert_config.json outranks the tokenizer's truncation, and may ask for lower case."""
        folder = Path(shutil.copytree(make_model(), tmp_path / "copy"))
        tokenizer = json.loads((folder / "tokenizer.json").read_text())
        tokenizer["normalizer"]["lowercase"] = False
        tokenizer["truncation"] = {
            "max_length": 8, "strategy": "LongestFirst", "stride": 0, "direction": "Right"
        }  # fmt: skip
        tokenizer["padding"] = {
            "strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": None,
            "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]",
        }  # fmt: skip
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
        plain = Encoder(folder)
        assert_same_vectors(plain.encode(texts), reference(folder).encode(texts))
        lower = Path(shutil.copytree(folder, tmp_path / "lower"))
        settings = {"max_seq_length": 21, "do_lower_case": True}
        (lower / "sentence_bert_config.json").write_text(json.dumps(settings))
        encoder = Encoder(lower)
        assert encoder.max_seq_length == 21 == reference(lower).max_seq_length
        assert_same_vectors(encoder.encode(texts), reference(lower).encode(texts))
        assert not np.array_equal(plain.encode("CAPITALS"), encoder.encode("CAPITALS"))

    def test_plain_transformers_folder(
        self, make_model: Make, reference: Load, texts: list[str], tmp_path: Path
    ) -> None:
        folder = Path(shutil.copytree(make_model(pooling="cls", normalize=True), tmp_path / "copy"))
        for name in ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"):
            (folder / name).unlink()
        assert_same_vectors(Encoder(folder).encode(texts), reference(folder).encode(texts))

    def test_token_embeddings(self, make_model: Make, reference: Load, texts: list[str]) -> None:
        folder = make_model(dense=((24, "Tanh", True),))
        result = Encoder(folder).encode(texts, output_value="token_embeddings")
        expected = reference(folder).encode(texts, output_value="token_embeddings")
        assert isinstance(result, list) and len(result) == len(texts)
        for ours, theirs in zip(result, expected, strict=True):
            assert_same_vectors(ours, theirs.numpy())
        one = Encoder(folder).encode(texts[3], output_value="token_embeddings")
        np.testing.assert_array_equal(one, result[3])

    def test_token_embeddings_as_tensors(self, make_model: Make, reference: Load) -> None:
        """Truncation and normalization are for sentence embeddings, here as there."""
        torch = pytest.importorskip("torch")
        folder = make_model(dense=((24, "Tanh", True),))
        changes: dict[str, Any] = {"normalize_embeddings": True, "truncate_dim": 7}
        for options in ({"convert_to_numpy": False}, {"convert_to_tensor": True}):
            for sentences in ("one", ["one", "two of them"], []):
                calls = {"output_value": "token_embeddings", **changes, **options}
                ours = Encoder(folder).encode(sentences, **calls)
                theirs = reference(folder).encode(sentences, **calls)
                assert type(ours) is type(theirs) and len(ours) == len(theirs)
                for row, expected in zip(ours, theirs, strict=True):
                    assert isinstance(row, torch.Tensor)
                    torch.testing.assert_close(row, expected, rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("dtype", ["int8", "uint8", "binary", "ubinary"])
    def test_output_types(self, make_model: Make, reference: Load, texts: list[str], dtype: Any) -> None:
        quantize = pytest.importorskip("sentence_transformers").quantize_embeddings
        encoder = Encoder(make_model())
        floats = encoder.encode(texts)
        ranges = np.stack([floats[:100].min(axis=0), floats[:100].max(axis=0)])
        expected = quantize(floats, precision=dtype, ranges=ranges)
        for name in ("precision", "output_dtype"):
            result = encoder.encode(texts, ranges=ranges, **{name: dtype})
            assert result.dtype == expected.dtype
            np.testing.assert_array_equal(result, expected)
        np.testing.assert_array_equal(encoder.encode(texts[5], ranges=ranges, precision=dtype), expected[5])

    @pytest.mark.parametrize("name", ["cosine", "dot", "euclidean", "manhattan"])
    def test_similarity(self, make_model: Make, reference: Load, texts: list[str], name: str) -> None:
        folder = make_model(similarity_fn_name=name)
        encoder, expected = Encoder(folder), reference(folder)
        assert encoder.similarity_fn_name == name
        a, b = encoder.encode(texts[:10]), encoder.encode(texts[10:20])
        scores = encoder.similarity(a, b)
        assert isinstance(scores, np.ndarray)
        np.testing.assert_allclose(scores, expected.similarity(a, b).numpy(), rtol=1e-5, atol=1e-5)
        pairs = encoder.similarity_pairwise(a, b)
        np.testing.assert_allclose(pairs, expected.similarity_pairwise(a, b).numpy(), rtol=1e-5, atol=1e-5)

    def test_kinds_of_results(self, make_model: Make, reference: Load) -> None:
        torch = pytest.importorskip("torch")
        folder = make_model()
        encoder, expected = Encoder(folder), reference(folder)
        calls: list[tuple[Any, dict[str, Any]]] = [
            ("one", {}),
            (["one"], {}),
            (("one", "two"), {}),
            (np.array(["one", "two"]), {}),
            ([], {}),
            ([], {"convert_to_numpy": False}),
            ([], {"convert_to_tensor": True}),
            ([], {"output_value": "token_embeddings"}),
            ("one", {"pool": None, "chunk_size": None}),
            ("one", {"convert_to_tensor": True}),
            (["one", "two"], {"convert_to_tensor": True}),
            ("one", {"convert_to_numpy": False}),
            (["one", "two"], {"convert_to_numpy": False}),
        ]
        for sentences, options in calls:
            ours, theirs = encoder.encode(sentences, **options), expected.encode(sentences, **options)
            assert type(ours) is type(theirs), (sentences, options)
            assert len(ours) == len(theirs)
            if isinstance(ours, list):
                assert all(isinstance(row, torch.Tensor) for row in ours)
                ours, theirs = [row.numpy() for row in ours], [row.numpy() for row in theirs]
            np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(encoder.encode(sentences=["one"]), encoder.encode(inputs=["one"]))
        scores = encoder.similarity(torch.ones(2, 32), np.ones((3, 32)))
        assert isinstance(scores, torch.Tensor) and scores.shape == (2, 3)


@pytest.mark.filterwarnings("ignore:.*longer than max_length")
def test_int8_is_close_to_fp32(make_model: Make, texts: list[str]) -> None:
    folder = make_model(hidden=384, heads=12, layers=2, intermediate=1536, normalize=True)
    exact = Encoder(folder).encode(texts)
    encoder = Encoder(folder, precision="int8")
    assert encoder.describe()["precision"] == "int8"
    assert (exact * encoder.encode(texts)).sum(axis=1).mean() >= 0.998


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.filterwarnings("ignore:.*longer than max_length")
def test_a_vector_does_not_depend_on_its_batch(make_model: Make, texts: list[str], precision: str) -> None:
    folder = make_model(hidden=64, heads=4, dense=((24, "Tanh", True),))
    few = texts[:60]
    expected = Encoder(folder, precision=precision, threads=1).encode(few)
    for threads in (1, 2, 3):
        encoder = Encoder(folder, precision=precision, threads=threads)
        np.testing.assert_array_equal(encoder.encode(few), expected)
        np.testing.assert_array_equal(encoder.encode(few[::-1]), expected[::-1])
        np.testing.assert_array_equal(encoder.encode(few, batch_size=1), expected)
        np.testing.assert_array_equal(encoder.encode(few, batch_size=7), expected)
        np.testing.assert_array_equal(np.stack([encoder.encode(text) for text in few]), expected)
        np.testing.assert_array_equal(np.vstack(list(encoder.encode_iter(few, block_size=11))), expected)


def test_window_is_the_mean_of_windows_weighted_by_tokens(make_model: Make) -> None:
    folder = make_model(normalize=True)
    encoder = Encoder(folder, max_length=10, on_overflow="window")
    long = "the weather is lovely today and people are out in the long sunny day about water"
    ids = encoder._engine.tokenizer.encode_batch([long])[0]
    words = long.split()
    assert len(ids) == len(words)  # each word is one token, so that windows can be written as texts
    pieces = [words[i : i + 8] for i in range(0, len(words), 8)]
    assert len(pieces) == 2
    vectors = encoder.encode([" ".join(piece) for piece in pieces])
    mean = np.average(vectors, axis=0, weights=[len(piece) for piece in pieces])
    result = encoder.encode(long)
    np.testing.assert_allclose(result, mean / np.linalg.norm(mean), atol=2e-6)
    short = "the weather"
    np.testing.assert_array_equal(encoder.encode(short), Encoder(folder).encode(short))
    assert encoder.describe()["truncated"] == 0


@pytest.mark.parametrize("repeats", [1, 4, 11])
def test_a_window_behind_an_excluded_prompt(make_model: Make, repeats: int) -> None:
    """By hand: the prompt is excluded from the means of the windows that contain some of it."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    folder = make_model(include_prompt=False)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    prompt = "instruction : " * repeats
    long = "the weather is lovely today and people are out in the long sunny day"
    content = tokenizer(prompt + long, add_special_tokens=False)["input_ids"]
    left_out = 1 + len(tokenizer(prompt, add_special_tokens=False)["input_ids"])  # [CLS] too
    total, weight = np.zeros(32), 0
    windows = [content[i : i + 10] for i in range(0, len(content), 10)]
    assert 1 < len(windows[-1]) < 10
    for number, window in enumerate(windows):
        ids = [tokenizer.cls_token_id, *window, tokenizer.sep_token_id]
        with torch.inference_mode():
            hidden = model(input_ids=torch.tensor([ids])).last_hidden_state[0].double().numpy()
        rest = left_out - 10 * number  # [CLS] and what the window has of the prompt
        pooled = hidden[(rest if rest <= 10 else 12) if rest > 1 else 0 :]
        total, weight = total + pooled.sum(axis=0), weight + len(pooled)
    result = Encoder(folder, max_length=12, on_overflow="window").encode(long, prompt=prompt)
    np.testing.assert_allclose(unit(result), unit(total / weight), atol=2e-6)


def test_overflow_as_an_error(make_model: Make) -> None:
    encoder = Encoder(make_model(), max_length=6, on_overflow="error")
    assert encoder.encode("the a of and").shape == (32,)
    with pytest.raises(ValueError, match=r"texts\[1\].*7"):
        encoder.encode(["the", "the a of and to"])
    with pytest.raises(ValueError, match=r"texts\[9000\].*7"):  # the index in the whole input, windows or not
        encoder.encode(["the"] * 9000 + ["the a of and to"])


def test_tokenize(make_model: Make, reference: Load, texts: list[str]) -> None:
    folder = make_model(max_seq_length=12)
    expected = [
        row[mask.bool()].tolist()
        for features in [reference(folder).tokenize(texts)]
        for row, mask in zip(features["input_ids"], features["attention_mask"], strict=True)
    ]
    assert Encoder(folder).tokenize(texts) == {"input_ids": expected}


@pytest.mark.filterwarnings("ignore:.*longer than max_length")
@pytest.mark.parametrize("normalize", [True, False])
def test_queries_in_two_steps(
    make_model: Make, texts: list[str], normalize: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedkit.encoder, "_WINDOW", 40)
    encoder = Encoder(make_model(include_prompt=False), prompts={"query": "the day "}, truncate_dim=9)
    expected = encoder.encode_query(texts, normalize_embeddings=normalize)
    truncated = encoder.describe()["truncated"]
    tokenize, encode = encoder.query_steps(normalize_embeddings=normalize)
    begin = time.perf_counter()
    vectors, spent = encode(tokenize(texts))
    np.testing.assert_array_equal(vectors, expected)
    assert 0 < spent < time.perf_counter() - begin
    assert encoder.describe()["truncated"] == 2 * truncated > 0
    assert encode(tokenize([]))[0].shape == (0, 9)
    with pytest.raises(ValueError, match=r"texts\[41\] holds a lone surrogate at position 1,"):
        encode(tokenize([*texts[:41], "a\ud800"]))
    encoder.close()
    with pytest.raises(ValueError, match="closed"):
        tokenize(texts)


@pytest.mark.parametrize("default", [None, "passage"])
def test_queries_of_prompts_without_query(make_model: Make, reference: Load, default: str | None) -> None:
    folder = make_model(seed=3)
    theirs = copy.deepcopy(reference(folder))
    theirs.prompts, theirs.default_prompt_name = {"passage": "the day "}, default
    encoder = Encoder(folder)
    encoder.prompts, encoder.default_prompt_name = {"passage": "the day "}, default
    expected = theirs.encode_query(["people", "now"])
    np.testing.assert_allclose(encoder.encode_query(["people", "now"]), expected, atol=2e-6)
    tokenize, encode = encoder.query_steps()
    np.testing.assert_allclose(encode(tokenize(["people", "now"]))[0], expected, atol=2e-6)
