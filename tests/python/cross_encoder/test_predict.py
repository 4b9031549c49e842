"""Cross-encoders of the core against transformers and sentence-transformers."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_cross_encoders import KINDS, WORDS

from embedkit import CrossEncoder, Encoder, _core

pytestmark = pytest.mark.filterwarnings("ignore:.*, and truncated")
Make = Callable[..., Path]


def _words(n: int, start: int = 0) -> str:
    return " ".join((WORDS * 10)[start : start + n])


# Whole, empty, one side too long, both too long by an odd and an even number of tokens, equally long.
PAIRS = [
    ("the weather is lovely", "people stay out"),
    ("", ""),
    ("a", ""),
    ("", "now and then"),
    (_words(60), "the people"),
    ("the people", _words(60, 3)),
    (_words(50), _words(51, 4)),
    (_words(51), _words(50, 4)),
    (_words(40), _words(40, 2)),
    (_words(19), _words(30, 2)),
    (_words(30), _words(18, 2)),
    ("weather [SEP] </s> stay", "out"),
]
SCRIPT = """
import json, sys, warnings
import numpy as np
from embedkit import CrossEncoder, active_isa
warnings.simplefilter("ignore")
folders, pairs, out = json.loads(sys.argv[1])
assert active_isa() == sys.argv[2]
for name, folder in folders.items():
    for precision in ("fp32", "int8"):
        logits = CrossEncoder(folder, precision=precision, threads=1).predict(pairs, activation_fn="identity")
        np.save(f"{out}/{name}-{precision}.npy", logits)
        for threads in (2, 3):
            model = CrossEncoder(folder, precision=precision, threads=threads, activation_fn="identity")
            np.testing.assert_array_equal(np.stack([model.predict(pair) for pair in pairs]), logits)
            np.testing.assert_array_equal(model.predict(pairs[::-1], batch_size=5)[::-1], logits)
"""


def _logits(folder: Path) -> np.ndarray:
    """The logits of transformers for `PAIRS`, each pair alone."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    rows = []
    for first, second in PAIRS:
        # lists: for a single text, transformers takes an empty second one for none
        inputs = tokenizer([first], [second], truncation="longest_first", max_length=40, return_tensors="pt")
        with torch.no_grad():
            rows.append(model(**inputs).logits[0].numpy())
    return np.stack(rows)


@pytest.mark.parametrize("isa", _core.available_isas())
def test_logits(isa: str, make_cross_encoder: Make, tmp_path: Path) -> None:
    folders = {kind: make_cross_encoder(kind, 3) for kind in KINDS}
    arguments = [{kind: str(folder) for kind, folder in folders.items()}, PAIRS, str(tmp_path)]
    command = [sys.executable, "-c", SCRIPT, json.dumps(arguments), isa]
    environment = {**os.environ, "EMBEDKIT_ISA": isa}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    for kind, folder in folders.items():
        expected = _logits(folder)
        assert np.ptp(expected, axis=0).min() > 0.1, kind
        fp32 = np.load(tmp_path / f"{kind}-fp32.npy")
        np.testing.assert_allclose(fp32, expected, atol=2e-5, err_msg=kind)
        int8 = np.load(tmp_path / f"{kind}-int8.npy")
        # Random weights are harder on eight bits than trained ones.
        assert np.corrcoef(int8.ravel(), expected.ravel())[0, 1] > 0.98, kind


def test_token_types_distinguish_the_texts(make_cross_encoder: Make) -> None:
    """The token types reach the model: if the second row equals the first, the logits differ."""
    folder = make_cross_encoder("bert", 3)
    model = CrossEncoder(folder)
    pair = PAIRS[0]
    typed = model.predict(pair)
    model._engine._text._typed = False
    assert np.abs(model.predict(pair) - typed).max() > 1e-3


@pytest.mark.parametrize("labels", [1, 3])
def test_what_sentence_transformers_returns(labels: int, make_cross_encoder: Make) -> None:
    torch = pytest.importorskip("torch")
    folder = make_cross_encoder("bert", labels)
    theirs = pytest.importorskip("sentence_transformers").CrossEncoder(str(folder), device="cpu")
    model = CrossEncoder(folder)
    assert model.num_labels == labels == len(model.labels)
    for options in (
        {},
        {"apply_softmax": True},
        {"activation_fn": torch.nn.Identity()},
        {"activation_fn": torch.nn.Sigmoid(), "convert_to_tensor": True},
        {"activation_fn": torch.sigmoid},
        {"activation_fn": torch.nn.functional.tanh},
        {"activation_fn": torch.nn.Sigmoid().forward},
    ):
        for given in (PAIRS, PAIRS[0], list(PAIRS[0])):
            found, expected = model.predict(given, **options), theirs.predict(given, **options)
            assert type(found) is type(expected)
            assert found.shape == expected.shape
            np.testing.assert_allclose(found, expected, atol=2e-5)
    listed = model.predict(PAIRS, convert_to_numpy=False)
    assert isinstance(listed, list)
    assert all(isinstance(row, torch.Tensor) for row in listed)
    assert len(model.predict([])) == 0
    assert len(model.predict(inputs=PAIRS)) == len(PAIRS)


def test_rank(make_cross_encoder: Make) -> None:
    folder = make_cross_encoder("roberta", 1)
    theirs = pytest.importorskip("sentence_transformers").CrossEncoder(str(folder), device="cpu")
    model = CrossEncoder(folder)
    documents = [text for pair in PAIRS for text in pair]
    expected = theirs.rank("the weather", documents, return_documents=True)
    found = model.rank("the weather", documents, return_documents=True)
    assert [set(hit) for hit in found] == [{"corpus_id", "score", "text"}] * len(documents)
    scores = {hit["corpus_id"]: hit["score"] for hit in expected}
    for hit, wanted in zip(found, expected, strict=True):
        assert hit["score"] == pytest.approx(wanted["score"], abs=2e-6)
        assert hit["score"] == pytest.approx(scores[hit["corpus_id"]], abs=2e-6)
        assert hit["text"] == documents[hit["corpus_id"]]
    top = model.rank("the weather", documents, top_k=3)
    assert top == [{"corpus_id": hit["corpus_id"], "score": hit["score"]} for hit in found[:3]]
    same = model.rank("the weather", ["people", "people", "people"])
    assert [hit["corpus_id"] for hit in same] == [0, 1, 2]
    assert model.rank("the weather", []) == []
    with pytest.raises(ValueError, match="rank needs a model with one class"):
        CrossEncoder(make_cross_encoder("bert", 3)).rank("a", ["b"])


def test_a_folder_of_sentence_transformers(make_cross_encoder: Make, tmp_path: Path) -> None:
    """modules.json, the activation and the length that its ``save_pretrained`` writes."""
    torch = pytest.importorskip("torch")
    st = pytest.importorskip("sentence_transformers")
    source = make_cross_encoder("bert", 1)
    theirs = st.CrossEncoder(str(source), device="cpu", activation_fn=torch.nn.Identity(), max_length=20)
    theirs.save_pretrained(str(tmp_path / "saved"))
    model = CrossEncoder(tmp_path / "saved")
    assert model.activation_fn == "identity"
    assert model.max_seq_length == 20
    np.testing.assert_allclose(model.predict(PAIRS), theirs.predict(PAIRS), atol=2e-5)


def test_the_default_prompt_of_the_folder(make_cross_encoder: Make, tmp_path: Path) -> None:
    st = pytest.importorskip("sentence_transformers")
    source = make_cross_encoder("bert", 1)
    theirs = st.CrossEncoder(
        str(source), device="cpu", prompts={"query": "stay out now: "}, default_prompt_name="query"
    )
    theirs.save_pretrained(str(tmp_path / "saved"))
    model = CrossEncoder(tmp_path / "saved")
    scores = model.predict(PAIRS)
    np.testing.assert_allclose(scores, theirs.predict(PAIRS), atol=2e-5)
    assert np.abs(scores - CrossEncoder(source).predict(PAIRS)).max() > 0.001
    best = theirs.rank("people", ["a", "the weather"])
    assert model.rank("people", ["a", "the weather"]) == [pytest.approx(hit, abs=2e-5) for hit in best]
    with pytest.raises(ValueError, match=r"pairs\[1\]\[0\] holds a lone surrogate at position 2"):
        model.predict([("a", "b"), ("ab\ud800", "b")])
    path = tmp_path / "saved" / "config_sentence_transformers.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "default_prompt_name": "other"}))
    with pytest.raises(ValueError, match="default_prompt_name is 'other', but the prompts are 'query'"):
        CrossEncoder(tmp_path / "saved")


def test_truncation_from_the_left(make_cross_encoder: Make, tmp_path: Path) -> None:
    folder = tmp_path / "left"
    shutil.copytree(make_cross_encoder("bert", 3), folder)
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**settings, "truncation_side": "left"}), encoding="utf-8")
    np.testing.assert_allclose(CrossEncoder(folder).predict(PAIRS), _logits(folder), atol=2e-5)


def test_truncated_pairs_are_counted(make_cross_encoder: Make) -> None:
    model = CrossEncoder(make_cross_encoder("bert", 1))
    with pytest.warns(UserWarning, match="7 of the first 12 pairs are longer than max_length=40"):
        model.predict(PAIRS)
    about = model.describe()
    assert (about["pairs"], about["truncated"], about["precision"]) == (len(PAIRS), 7, "fp32")
    assert sum(sum(model._engine.too_long(first, 40)([second])) for first, second in PAIRS) == 7
    model.max_seq_length = 66
    assert model.describe()["max_length"] == 66
    with pytest.raises(ValueError, match="max_length must be from 4"):
        model.max_seq_length = 67


@pytest.mark.filterwarnings("ignore:The `max_length` property")
def test_max_length_is_max_seq_length(make_cross_encoder: Make) -> None:
    st = pytest.importorskip("sentence_transformers")
    folder = make_cross_encoder("bert", 1)
    model, theirs = CrossEncoder(folder), st.CrossEncoder(str(folder), device="cpu")
    whole = model.predict(PAIRS)
    model.max_length = theirs.max_length = 12
    assert model.max_length == model.max_seq_length == 12
    np.testing.assert_allclose(model.predict(PAIRS), theirs.predict(PAIRS), atol=2e-5)
    assert np.abs(model.predict(PAIRS) - whole).max() > 0.001
    with pytest.raises(ValueError, match="max_length must be from 4"):
        model.max_length = 3


def test_pickle_and_close(make_cross_encoder: Make) -> None:
    model = CrossEncoder(make_cross_encoder("mpnet", 3), precision="int8", max_length=30)
    copy = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copy.predict(PAIRS), model.predict(PAIRS))
    assert repr(copy) == repr(model)
    with model:
        pass
    model.close()
    assert "closed" in repr(model)
    with pytest.raises(ValueError, match="this CrossEncoder is closed"):
        model.predict(PAIRS)


def test_evaluators_measure_what_they_measure_on_theirs(make_cross_encoder: Make) -> None:
    st = pytest.importorskip("sentence_transformers")
    from sentence_transformers.cross_encoder import evaluation

    folder = make_cross_encoder("bert", 1)
    model, theirs = CrossEncoder(folder), st.CrossEncoder(str(folder), device="cpu")
    evaluator = evaluation.CrossEncoderCorrelationEvaluator(PAIRS, list(range(len(PAIRS))))
    measured = evaluator(model)
    assert measured == pytest.approx(evaluator(theirs), abs=1e-4)
    assert model.model_card_data.eval_results_dict[evaluator] == measured
    assert pickle.loads(pickle.dumps(model)).model_card_data.eval_results_dict == {}


def test_a_pickle_does_not_open_another_model(make_cross_encoder: Make, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(make_cross_encoder("bert", 1), tmp_path / "model"))
    pickled = pickle.dumps(CrossEncoder(folder))
    shutil.rmtree(folder)
    shutil.copytree(make_cross_encoder("bert", 3), folder)
    with pytest.raises(ValueError, match="the folder holds another model than where it was pickled"):
        pickle.loads(pickled)


def test_threads_share_one_model(make_cross_encoder: Make) -> None:
    model = CrossEncoder(make_cross_encoder("bert", 3), threads=2)
    expected = model.predict(PAIRS)
    found: list[Any] = [None] * 4

    def score(i: int) -> None:
        found[i] = [model.predict(PAIRS) for _ in range(5)]

    workers = [threading.Thread(target=score, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for results in found:
        for result in results:
            np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ("text", "expected a pair of texts or a list of pairs, got str"),
        (7, "got int"),
        (["a", "b", "c"], r"pairs\[0\] holds 3 items, not two texts; to score several pairs, pass"),
        ([("a", "b"), "cd"], r"pairs\[1\] is str, not a pair"),
        ([("a", "b"), ("c",)], r"pairs\[1\] holds 1 items"),
        ([("a", "b"), ("c", 4)], r"pairs\[1\]\[1\] is int, not str"),
        ([("a", b"b")], r"pairs\[0\]\[1\] is bytes, not str: decode it first"),
    ],
)
def test_bad_pairs(pairs: Any, message: str, make_cross_encoder: Make) -> None:
    with pytest.raises(TypeError, match=message):
        CrossEncoder(make_cross_encoder()).predict(pairs)


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("fit", "embedkit-train"),
        ("save_pretrained", "copy its folder"),
        ("to", "the CPU only"),
        ("cpu", "the CPU only"),
        ("eval", "it only scores"),
        ("tokenizer", "its files are in"),
    ],
)
def test_what_there_is_not_names_what_to_use(name: str, instead: str, make_cross_encoder: Make) -> None:
    assert hasattr(pytest.importorskip("sentence_transformers").CrossEncoder, name)
    model = CrossEncoder(make_cross_encoder())
    with pytest.raises(AttributeError, match=f"'CrossEncoder' object has no attribute '{name}'; .*{instead}"):
        getattr(model, name)
    assert not hasattr(model, "nonsense") and hasattr(pickle.loads(pickle.dumps(model)), "predict")


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_bad_arguments(kind: str, make_cross_encoder: Make) -> None:
    folder = make_cross_encoder(kind, 1)
    model = CrossEncoder(folder)
    with pytest.raises(ValueError, match=r"pairs\[1\]\[0\] holds a lone surrogate at position 1"):
        model.predict([("a", "b"), ("x\ud800", "c")])
    with pytest.raises(ValueError, match="batch_size must be a positive"):
        model.predict(PAIRS, batch_size=0)
    with pytest.raises(ValueError, match="unknown activation_fn='softplus'"):
        model.predict(PAIRS, activation_fn="softplus")
    for wrong in (lambda logits: None, lambda logits: logits[:2], np.sum):
        with pytest.raises(ValueError, match=r"activation_fn returned .* for logits \(.*, 1\)"):
            model.predict(PAIRS, activation_fn=wrong)
    same = model.predict(PAIRS, device="cpu", num_workers=0, prompt="")  # type: ignore[arg-type]
    np.testing.assert_array_equal(same, model.predict(PAIRS))
    two = model.predict(PAIRS, activation_fn=lambda logits: np.hstack([1 - logits, logits]))
    assert two.shape == (len(PAIRS), 2)
    with pytest.raises(ValueError, match=r"returned \(2, 2\) for 2 texts: rank needs one score each"):
        model.rank("a", ["b", "c"], activation_fn=lambda logits: np.hstack([1 - logits, logits]))
    plain = model.rank("a", ["b", "c"])
    assert (
        model.rank("a", ["b", "c"], convert_to_numpy=True, convert_to_tensor=False, apply_softmax=False)
        == plain
    )  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="runs on the CPU only"):
        model.rank("a", ["b"], device="cuda")
    with pytest.raises(ValueError, match=r"runs on the CPU only; set CrossEncoder\(threads=...\)"):
        model.predict(PAIRS, device=["cpu", "cpu"])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="its name is activation_fn"):
        model.predict(PAIRS, activation_fct=np.tanh)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"predict\(prompt=...\) is not supported"):
        model.predict(PAIRS, prompt="query: ")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"rank\(prompt=...\) is not supported"):
        model.rank("a", ["b"], prompt="query: ")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"rank\(\) got an unexpected keyword argument 'foo'"):
        model.rank("a", ["b"], foo=None)
    with pytest.raises(TypeError, match=r"documents\[1\] is int"):
        model.rank("a", ["b", 3])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="not a str"):
        model.rank("a", "b")
    with pytest.raises(TypeError, match="expected a list of texts as documents, got dict: pass its values"):
        model.rank("a", {"x": "b"})
    with pytest.raises(TypeError, match="expected a pair of texts or a list of pairs, got set"):
        model.predict({("a", "b")})
    with pytest.raises(ValueError, match=r"num_labels is 2, .* has 1 class: "):
        CrossEncoder(folder, num_labels=2)
    with pytest.raises(ValueError, match=r"CrossEncoder\(backend=...\) is not supported"):
        CrossEncoder(folder, backend="onnx")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="needs a model"):
        CrossEncoder()


def _changed(folder: Path, target: Path, **changes: Any) -> Path:
    shutil.copytree(folder, target)
    path = target / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **changes}), encoding="utf-8")
    return target


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["BertModel"]}, "the folder holds no cross-encoder"),
        ({"id2label": {"0": "a", "2": "b"}}, "id2label must name the classes"),
        ({"id2label": {"0": "a", "1": "b"}}, r"'classifier.weight' has the shape \[1, 40\]"),
        ({"id2label": None, "num_labels": True}, "num_labels must be an integer"),
        ({"model_type": "gpt2"}, "unknown model_type 'gpt2'; expected one of bert"),
        ({"model_type": "eurobert"}, "does not compute the classifier of eurobert models"),
        ({"sbert_ce_default_activation_function": "os.system"}, "unknown activation 'os.system'"),
    ],
)
def test_bad_folders(changes: dict[str, Any], message: str, make_cross_encoder: Make, tmp_path: Path) -> None:
    folder = _changed(make_cross_encoder("bert", 1), tmp_path / "model", **changes)
    with pytest.raises(ValueError, match=message):
        CrossEncoder(folder)


def test_a_plain_folder_with_a_chat_template(make_cross_encoder: Make, tmp_path: Path) -> None:
    """Without modules.json, sentence-transformers takes any template for the pair."""
    folder = _changed(make_cross_encoder("bert", 1), tmp_path / "model")
    (folder / "chat_template.jinja").write_text("{{ messages }}", encoding="utf-8")
    theirs = pytest.importorskip("sentence_transformers").CrossEncoder(str(folder), device="cpu")
    if "message" not in getattr(theirs[0], "modality_config", {}):
        pytest.skip("this sentence-transformers has no templates of pairs")
    np.testing.assert_allclose(CrossEncoder(folder).predict(PAIRS), theirs.predict(PAIRS), atol=2e-5)


def test_a_sentence_encoder_is_refused(make_model: Make, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a cross-encoder is one Transformer. .*embedkit.Encoder"):
        CrossEncoder(make_model())
    with pytest.raises(FileNotFoundError):
        CrossEncoder(tmp_path / "none")


def test_the_encoder_still_has_one_token_type(make_cross_encoder: Make) -> None:
    """A text alone is of type 0 for the encoder inside, as for transformers."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    folder = make_cross_encoder("bert", 3)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        hidden = model(**tokenizer("the weather", return_tensors="pt")).last_hidden_state[0]
    np.testing.assert_allclose(Encoder(folder).encode("the weather"), hidden.mean(0), atol=1e-5)


def test_tensors_without_torch(make_cross_encoder: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are refused before the pairs are scored."""
    model = CrossEncoder(make_cross_encoder("bert", 1))
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(CrossEncoder, "_scores", None)
    for options in ({"convert_to_tensor": True}, {"convert_to_numpy": False}):
        with pytest.raises(ImportError, match="torch tensors were requested: pip install torch"):
            model.predict(PAIRS, **options)  # type: ignore[call-overload]


@pytest.mark.model
def test_real_cross_encoder() -> None:
    folder = os.environ.get("EMBEDKIT_TEST_CROSS_ENCODER")
    if not folder:
        pytest.skip("EMBEDKIT_TEST_CROSS_ENCODER does not name a trained cross-encoder")
    theirs = pytest.importorskip("sentence_transformers").CrossEncoder(folder, device="cpu")
    pairs = [
        ("A man is eating food.", "A man eats something."),
        ("A man is eating food.", "Nobody is eating."),
        ("Two kids play in the park.", "It is raining in Paris, and the stock market fell by 3 %."),
    ]
    expected = theirs.predict(pairs)
    np.testing.assert_allclose(CrossEncoder(folder).predict(pairs), expected, atol=2e-5)
    int8 = CrossEncoder(folder, precision="int8").predict(pairs)
    assert np.abs(int8 - expected).max() < 0.05 * np.ptp(expected)


def test_pairs_of_several_windows(make_cross_encoder: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    model = CrossEncoder(make_cross_encoder())
    pairs = [(_words(n % 9, n), _words(3 + n % 4)) for n in range(13)]
    expected = model.predict(pairs)
    monkeypatch.setattr("embedkit.cross_encoder._WINDOW", 5)
    np.testing.assert_array_equal(model.predict(pairs), expected)
    with pytest.raises(ValueError, match=r"pairs\[11\]\[1\] holds a lone surrogate at position 1"):
        model.predict([*pairs[:11], ("a", "b\ud800"), pairs[12]])
