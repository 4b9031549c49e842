"""Graphs as Optimum and sentence-transformers write them, against sentence-transformers and the core."""

from __future__ import annotations

import copy
import json
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_graphs import edit_graph, optimum_folder, trace
from tiny_cross_encoders import write_cross_encoder

from embedkit import Encoder
from embedkit.backends.onnx import OnnxStage

pytest.importorskip("onnxruntime")

MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
SHAPE: dict[str, Any] = {"hidden": 36, "heads": 3, "intermediate": 50}
WITHOUT_TORCH = """
import sys
for name in ("torch", "transformers", "onnx"):
    sys.modules[name] = None
import numpy as np
from embedkit import Encoder
np.save(sys.argv[2], Encoder(sys.argv[1], backend="onnx").encode(["hello world", "a"]))
"""


@pytest.fixture(scope="module")
def graph(make_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The transformer that every model of `SHAPE` has."""
    return trace(make_model(**SHAPE), tmp_path_factory.mktemp("graph") / "model.onnx")


@pytest.fixture
def folder(make_model: Callable[..., Path], graph: Path, tmp_path: Path) -> Path:
    source = make_model(**SHAPE, dense=((24, "Tanh", True),), normalize=True)
    return optimum_folder(source, graph, tmp_path / "model")


@pytest.mark.parametrize(
    "options",
    [
        *({"pooling": mode} for mode in MODES),
        {"pooling": MODES, "normalize": True},
        {"dense": ((24, "Tanh", True), (10, "GELU", False), (7, "Sigmoid", True)), "normalize": True},
        {"dense": ((24, "ReLU", False), (9, "SiLU", True), (5, "Identity", True))},
    ],
)
def test_modules_of_the_folder(
    options: dict[str, Any],
    make_model: Callable[..., Path],
    reference: Callable[[Path], Any],
    graph: Path,
    tmp_path: Path,
) -> None:
    source = make_model(**SHAPE, **options)
    encoder = Encoder(optimum_folder(source, graph, tmp_path / "model"), backend="onnx", threads=1)
    texts = ["", "a", "the weather is lovely today .", "[SEP] inside [MASK]", "x" * 20, "who knows ? " * 12]
    expected = reference(source).encode(texts)
    vectors = encoder.encode(texts)
    scale = np.abs(expected).max()
    assert vectors.shape == expected.shape and vectors.dtype == np.float32
    assert np.abs(vectors - expected).max() <= 5e-6 * max(1, scale)


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_positions_as_an_input(kind: str, tmp_path: Path, texts: list[str]) -> None:
    """Optimum gives decoders this input; RoBERTa counts from the id of the padding."""
    source = write_cross_encoder(tmp_path / "source", kind, 1)
    graph = trace(source, tmp_path / "model.onnx", inputs=("input_ids", "attention_mask", "position_ids"))
    encoder = Encoder(optimum_folder(source, graph, tmp_path / "model"), backend="onnx")
    np.testing.assert_allclose(encoder.encode(texts), Encoder(source).encode(texts), atol=2e-5)


def test_a_graph_without_a_mask_takes_no_padding(make_model: Callable[..., Path], tmp_path: Path) -> None:
    source = make_model(**SHAPE)
    graph = trace(source, tmp_path / "model.onnx", inputs=("input_ids",))
    encoder = Encoder(optimum_folder(source, graph, tmp_path / "model"), backend="onnx")
    texts = ["the weather is lovely today .", "hello", "hello world", "hello world"]
    np.testing.assert_allclose(encoder.encode(texts), Encoder(source).encode(texts), atol=1e-5)
    stage: OnnxStage = encoder._engine.stage  # type: ignore[attr-defined]
    assert list(stage.cut(np.array([9, 8, 8, 8, 3], dtype=np.int32), 2)) == [0, 1, 3, 4, 5]


def test_prompts_excluded_from_pooling(
    make_model: Callable[..., Path],
    reference: Callable[[Path], Any],
    graph: Path,
    tmp_path: Path,
    texts: list[str],
) -> None:
    source = make_model(**SHAPE, include_prompt=False, prompts={"query": "query : "}, pooling=("mean", "max"))
    encoder = Encoder(optimum_folder(source, graph, tmp_path / "model"), backend="onnx")
    for name in ("query", None):
        expected = reference(source).encode(texts[:50], prompt_name=name)
        assert np.abs(encoder.encode(texts[:50], prompt_name=name) - expected).max() <= 1e-5


def test_what_encode_offers(
    folder: Path, make_model: Callable[..., Path], reference: Callable[[Path], Any], texts: list[str]
) -> None:
    source = make_model(**SHAPE, dense=((24, "Tanh", True),), normalize=True)
    encoder, core, other = Encoder(folder, backend="onnx"), Encoder(source), reference(source)
    for options in (
        {"truncate_dim": 10, "normalize_embeddings": True},
        {"batch_size": 3},
        {"prompt": "query: "},
    ):
        assert np.abs(encoder.encode(texts, **options) - core.encode(texts, **options)).max() <= 2e-6
    close = np.isclose(core.encode(texts), 0, atol=1e-6)
    bits = [np.unpackbits(e.encode(texts, output_dtype="ubinary"), axis=1)[:, :24] for e in (encoder, core)]
    assert (close | (bits[0] == bits[1])).all()
    for mine, theirs in zip(
        encoder.encode(texts[:20], output_value="token_embeddings"),
        other.encode(texts[:20], output_value="token_embeddings"),
        strict=True,
    ):
        np.testing.assert_allclose(mine, theirs[: len(mine)].numpy(), atol=2e-5)
    blocks = list(encoder.encode_iter(texts, block_size=70))
    assert np.abs(np.concatenate(blocks) - core.encode(texts)).max() <= 2e-6
    assert encoder.encode([]).shape == (0,) and encoder.encode("a").shape == (24,)
    windows = [
        Encoder(path, on_overflow="window", max_length=9, backend=backend)
        for path, backend in ((folder, "onnx"), (source, "auto"))
    ]
    assert np.abs(windows[0].encode(texts) - windows[1].encode(texts)).max() <= 2e-6


def test_life(folder: Path, texts: list[str]) -> None:
    encoder = Encoder(folder, backend="onnx", threads=2)
    vectors = encoder.encode(texts)
    about = encoder.describe()
    assert about["backend"] == "onnx" and about["providers"] == ["CPUExecutionProvider"]
    assert about["threads"] == 2 and about["device"] == "cpu" and about["precision"] == "fp32"
    assert about["onnx_file"] == str(folder / "onnx" / "model.onnx")
    for twin in (pickle.loads(pickle.dumps(encoder)), copy.deepcopy(encoder)):
        assert np.abs(twin.encode(texts) - vectors).max() <= 1e-6
        assert twin.fingerprint == encoder.fingerprint
    with ThreadPoolExecutor(4) as pool:
        for result in pool.map(lambda _: encoder.encode(texts), range(8)):
            assert np.abs(result - vectors).max() <= 1e-6
    with pytest.raises(ValueError, match="an encoder with the ONNX backend cannot be saved; copy its folder"):
        encoder.save(folder.parent / "copy")
    encoder.close()
    with pytest.raises(ValueError, match="closed"):
        encoder.encode("a")


def test_a_fingerprint_of_the_graph(folder: Path, tmp_path: Path) -> None:
    first = Encoder(folder, backend="onnx").fingerprint
    again = Path(shutil.copytree(folder, tmp_path / "again"))
    assert Encoder(again, backend="onnx").fingerprint == first
    edit_graph(again / "onnx" / "model.onnx", lambda model: model.graph.node[0].ClearField("name"))
    assert Encoder(again, backend="onnx").fingerprint != first


@pytest.mark.parametrize("name", ["model.onnx", "model.onnx_data"])
def test_a_graph_that_was_replaced_is_no_longer_the_one_in_memory(folder: Path, name: str) -> None:
    import onnx

    path = folder / "onnx" / "model.onnx"
    onnx.save(
        onnx.load(str(path)),
        str(path),
        save_as_external_data=True,
        location="model.onnx_data",
        size_threshold=0,
    )
    encoder = Encoder(folder, backend="onnx")
    changed = path.with_name(name)
    changed.write_bytes(changed.read_bytes() + b"\0")
    with pytest.raises(ValueError, match=f"{name} has changed since the model was opened"):
        encoder.fingerprint  # noqa: B018


def test_weights_that_the_graph_replaces_may_come_and_go(folder: Path) -> None:
    """A download for ONNX leaves them out, one for the core adds them to the same folder."""
    encoder = Encoder(folder, backend="onnx")
    pickled = pickle.dumps(encoder)
    for name in ("model.safetensors", "model.safetensors.index.json"):
        (folder / name).write_bytes(b"{}")
    assert pickle.loads(pickled).fingerprint == encoder.fingerprint
    (dense,) = folder.glob("*_Dense/model.safetensors")
    dense.write_bytes(dense.read_bytes() + b"\0")
    with pytest.raises(ValueError, match="has changed since the model was opened"):
        encoder._engine.folder.check_unchanged()


def test_types_the_core_does_not_know(tmp_path: Path, make_model: Callable[..., Path]) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(make_model())
    torch.manual_seed(0)
    model = transformers.MegatronBertModel(
        transformers.MegatronBertConfig(
            vocab_size=len(tokenizer),
            hidden_size=36,
            num_attention_heads=3,
            num_hidden_layers=2,
            intermediate_size=50,
            max_position_embeddings=40,
        )
    ).eval()
    source = tmp_path / "megatron"
    model.save_pretrained(source)
    tokenizer.save_pretrained(source)
    with pytest.raises(ValueError, match=r"unknown model_type 'megatron-bert'.*backend=\"onnx\""):
        Encoder(source)
    trace(source, source / "model.onnx")
    (source / "model.safetensors").unlink()
    encoder = Encoder(source, backend="onnx")
    texts = ["hello world", "the weather is lovely today .", "a"]
    with torch.no_grad():
        for text, vector in zip(texts, encoder.encode(texts), strict=True):
            hidden = model(**tokenizer(text, return_tensors="pt"))[0]
            np.testing.assert_allclose(vector, hidden[0].mean(dim=0).numpy(), atol=1e-5)
    assert encoder.max_seq_length == 40


def test_runs_silently_without_torch(folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_TORCH, str(folder), str(tmp_path / "v.npy")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 and done.stderr == done.stdout == "", done.stderr
    expected = Encoder(folder, backend="onnx").encode(["hello world", "a"])
    assert np.abs(np.load(tmp_path / "v.npy") - expected).max() <= 1e-6


def test_batches_are_bounded_and_of_similar_lengths(folder: Path) -> None:
    stage: OnnxStage = Encoder(folder, backend="onnx")._engine.stage  # type: ignore[attr-defined]
    budget = stage.describe()["batch_tokens"]
    random = np.random.default_rng(0)
    for most in (0, 1, 7, 64):
        for size in (0, 1, 2, 50, 5000):
            lengths = -np.sort(-random.integers(1, 513, size).astype(np.int32))
            bounds = list(stage.cut(lengths, most))
            assert bounds == sorted(set(bounds)) and bounds[0] == 0 and bounds[-1] == size
            padded = 0
            for begin, end in pairwise(bounds):
                assert end - begin <= (most or size)
                assert (end - begin) * lengths[begin] <= budget or end - begin == 1
                padded += (end - begin) * int(lengths[begin])
            if size == 5000:
                assert padded <= 1.1 * lengths.sum()
    assert list(stage.cut(np.array([100_000, 3, 3], dtype=np.int32), 0)) == [0, 1, 3]


def test_buffers_do_not_grow_with_the_texts(folder: Path) -> None:
    encoder = Encoder(folder, backend="onnx")
    stage: Any = encoder._engine.stage  # type: ignore[attr-defined]
    stage._budget = 256
    for count in (1, 100, 1000):
        encoder.encode(["the weather is lovely today . " * (i % 7) for i in range(count)])
        (buffers,) = stage._session._idle  # one, since one thread encodes
        sizes = {name: array.size for name, array in buffers._flat.items()}
        assert max(sizes[name] for name in stage._session.inputs) <= 256
        assert sizes["last_hidden_state"] <= 256 * SHAPE["hidden"]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(encoder.encode, [["hello world"] * 300] * 8))
    assert len(stage._session._idle) <= 4


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"device": "cuda"}, ValueError, "no CUDAExecutionProvider .*onnxruntime-gpu"),
        ({"device": "cuda:1"}, ValueError, "no CUDAExecutionProvider"),
        ({"device": "tpu"}, ValueError, "unknown device='tpu'"),
        ({"device": "cpu:1"}, ValueError, "unknown device='cpu:1'"),
        (
            {"device": "cuda", "providers": ["CPUExecutionProvider"]},
            ValueError,
            "needs CUDAExecutionProvider",
        ),
        (
            {"device": "cuda:1", "providers": [("CUDAExecutionProvider", {"device_id": 0})]},
            ValueError,
            "name different GPUs",
        ),
        ({"providers": ["NoExecutionProvider"]}, ValueError, "has no NoExecutionProvider; it has .*CPUExec"),
        ({"providers": []}, ValueError, "providers is empty"),
        ({"providers": "CPUExecutionProvider"}, TypeError, "providers must be a list"),
        ({"providers": [("CPUExecutionProvider",)]}, TypeError, "a provider is a name or"),
        ({"precision": "int8"}, ValueError, "precision='int8': .*model.onnx is fp32"),
        ({"precision": "bf16"}, ValueError, "unknown precision='bf16'"),
        ({"onnx_file": 3}, TypeError, "onnx_file must be a str"),
        ({"onnx_file": "../model.onnx"}, ValueError, "leads out of the model folder"),
        ({"onnx_file": "/model.onnx"}, ValueError, "leads out of the model folder"),
        (
            {"onnx_file": "model_O9.onnx"},
            FileNotFoundError,
            "does not have this graph; it has 'onnx/model.onnx'",
        ),
    ],
)
def test_bad_arguments(folder: Path, options: dict[str, Any], error: type[Exception], message: str) -> None:
    pytest.importorskip("onnxruntime")
    with pytest.raises(error, match=message):
        Encoder(folder, backend="onnx", **options)


def test_a_provider_of_gpus_contradicts_the_cpu(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    names = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: names)
    with pytest.raises(ValueError, match="contradict each other"):
        Encoder(folder, backend="onnx", device="cpu", providers=names)


def test_providers_with_options(folder: Path) -> None:
    providers = [("CPUExecutionProvider", {"arena_extend_strategy": "kSameAsRequested"})]
    assert Encoder(folder, backend="onnx", providers=providers).encode("a").shape == (24,)
    of_json = json.loads(json.dumps(providers))
    assert Encoder(folder, backend="onnx", providers=of_json).encode("a").shape == (24,)


def test_floats_keep_their_bits_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxruntime

    from embedkit.backends.onnx_session import check_providers

    names = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: names)
    (_, cuda), cpu = check_providers(None, "cuda:1")
    assert cuda == {"device_id": 1, "use_tf32": 0} and cpu == names[2]
    (_, tensorrt), (_, cuda) = check_providers([names[0], (names[1], {"use_tf32": 1})], "cuda:1")
    assert tensorrt == {"device_id": 1} and cuda == {"device_id": 1, "use_tf32": 1}


def test_a_fork_raises_with_a_remedy(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = Encoder(folder, backend="onnx")
    monkeypatch.setattr("embedkit.backends.onnx.os.getpid", lambda: -1)
    with pytest.raises(RuntimeError, match=r"do not survive a fork: .* or open the Encoder in the child"):
        encoder.encode("a")


def test_outputs_in_memory_of_the_device(
    folder: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from embedkit.backends import onnx_session

    expected = Encoder(folder, backend="onnx").encode(texts)
    options = ("CUDAExecutionProvider", {"device_id": 1})
    assert onnx_session._output_device([options, "CPUExecutionProvider"]) == ("cuda", 1)
    assert onnx_session._output_device(["CPUExecutionProvider"]) is None
    monkeypatch.setattr(onnx_session, "_output_device", lambda providers: ("cpu", 0))
    np.testing.assert_array_equal(Encoder(folder, backend="onnx").encode(texts), expected)


def test_providers_that_do_not_start(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # ONNX Runtime without CUDA's libraries lists the provider, then silently runs on the CPU.
    import onnxruntime

    real = onnxruntime.InferenceSession
    names = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: names)
    monkeypatch.setattr(
        onnxruntime,
        "InferenceSession",
        lambda path, options, providers, **rest: real(
            path, options, providers=["CPUExecutionProvider"], **rest
        ),
    )
    with pytest.raises(ValueError, match="CUDAExecutionProvider could not be started"):
        Encoder(folder, backend="onnx", device="cuda:0")


def test_which_graph(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx = folder / "onnx"
    (onnx / "model.onnx").rename(onnx / "model_O3.onnx")
    assert Encoder(folder, backend="onnx").describe()["onnx_file"].endswith("model_O3.onnx")  # the only one
    shutil.copyfile(onnx / "model_O3.onnx", onnx / "model_qint8_arm64.onnx")
    with pytest.raises(
        ValueError, match=r"several ONNX graphs: .* 'onnx/model_O3.onnx', 'onnx/model_qint8_arm64"
    ):
        Encoder(folder, backend="onnx")
    for name in ("model_qint8_arm64.onnx", "onnx/model_qint8_arm64.onnx"):
        about = Encoder(folder, backend="onnx", onnx_file=name).describe()
        assert about["precision"] == "int8" and about["onnx_file"].endswith("model_qint8_arm64.onnx")
    shutil.copyfile(onnx / "model_O3.onnx", onnx / "print4.onnx")
    assert Encoder(folder, backend="onnx", onnx_file="print4.onnx").describe()["precision"] == "fp32"
    for kind in ("q4", "q4f16", "bnb4", "nf4", "int4", "uint4"):  # of transformers.js
        name = f"model_{kind}.onnx"
        shutil.copyfile(onnx / "model_O3.onnx", onnx / name)
        assert Encoder(folder, backend="onnx", onnx_file=name).describe()["precision"] == "int4"
        with pytest.raises(ValueError, match=f"precision='fp32': .*{name} is int4"):
            Encoder(folder, backend="onnx", onnx_file=name, precision="fp32")
    shutil.copyfile(onnx / "model_O3.onnx", onnx / "model.onnx")  # sentence-transformers' default
    assert Encoder(folder, backend="onnx").describe()["onnx_file"].endswith("model.onnx")
    shutil.copyfile(onnx / "model_O3.onnx", folder / "model.onnx")
    with pytest.raises(ValueError, match="several ONNX graphs"):
        Encoder(folder, backend="onnx")
    (folder / "model.onnx").unlink()
    shutil.rmtree(onnx)
    with pytest.raises(FileNotFoundError, match="holds no ONNX graph"):
        Encoder(folder, backend="onnx")


def test_the_core_points_to_the_graph(folder: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"holds an ONNX graph, which Encoder\(FOLDER, backend=.* was exported from"
    ):
        Encoder(folder)


def _rename_input(model: Any) -> None:
    for item in model.graph.input:
        if item.name == "attention_mask":
            item.name = "pixel_values"
    for node in model.graph.node:
        node.input[:] = ["pixel_values" if name == "attention_mask" else name for name in node.input]


def _fix_axes(model: Any) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 7


def _flat_output(model: Any) -> None:
    import onnx

    model.graph.node.append(onnx.helper.make_node("Shape", ["last_hidden_state"], ["shape"]))
    del model.graph.output[:]
    model.graph.output.append(onnx.helper.make_tensor_value_info("shape", onnx.TensorProto.INT64, [3]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_rename_input, "the graph has an unknown input 'pixel_values'"),
        (_fix_axes, "export the model with dynamic axes"),
        (_flat_output, "the outputs of the graph are shape, neither token embeddings"),
    ],
)
def test_graphs_of_other_models(folder: Path, change: Callable[[Any], None], message: str) -> None:
    edit_graph(folder / "onnx" / "model.onnx", change)
    with pytest.raises(ValueError, match=message) as caught:
        Encoder(folder, backend="onnx")
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize("size", [0, 1, 100, 10_000])
def test_truncated_graphs(folder: Path, size: int, capfd: pytest.CaptureFixture[str]) -> None:
    path = folder / "onnx" / "model.onnx"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ValueError, match=r"model\.onnx: .*(again|neither|has no)"):
        Encoder(folder, backend="onnx")
    assert capfd.readouterr() == ("", "")


def test_weights_beside_the_graph(folder: Path, texts: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    import onnx

    path = folder / "onnx" / "model.onnx"
    expected = Encoder(folder, backend="onnx")
    vectors, fingerprint = expected.encode(texts[:20]), expected.fingerprint
    model = onnx.load(str(path))
    onnx.save(model, str(path), save_as_external_data=True, location="model.onnx_data", size_threshold=0)
    encoder = Encoder(folder, backend="onnx")
    assert np.abs(encoder.encode(texts[:20]) - vectors).max() <= 1e-6
    before = encoder.fingerprint
    assert before != fingerprint
    data = path.with_name("model.onnx_data")
    content = bytearray(data.read_bytes())
    content[0] ^= 1
    data.write_bytes(content)
    assert Encoder(folder, backend="onnx").fingerprint != before
    data.write_bytes(content[:100])
    for remove in (False, True):
        if remove:
            data.unlink()
        with pytest.raises(ValueError, match="with the files that hold the graph's weights"):
            Encoder(folder, backend="onnx")
    assert capfd.readouterr() == ("", "")


def test_weights_outside_of_the_folder(folder: Path) -> None:
    import onnx

    path = folder / "onnx" / "model.onnx"
    model = onnx.load(str(path))
    onnx.save(model, str(path), save_as_external_data=True, location="data", size_threshold=0)
    path.with_name("data").rename(folder.parent / "data")

    def outside(model: Any) -> None:
        for tensor in model.graph.initializer:
            for entry in tensor.external_data:
                if entry.key == "location":
                    entry.value = "../../data"

    model = onnx.load(str(path), load_external_data=False)
    outside(model)
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ValueError, match="ONNX Runtime cannot open this graph"):
        Encoder(folder, backend="onnx")


def test_another_models_graph(folder: Path, make_model: Callable[..., Path], tmp_path: Path) -> None:
    trace(make_model(), folder / "onnx" / "model.onnx")
    with pytest.raises(ValueError, match=r"have 32 dimensions, config\.json makes it 36"):
        Encoder(folder, backend="onnx")


def test_a_graph_that_fails(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    import onnx

    def shrink(model: Any) -> None:
        for tensor in model.graph.initializer:
            if tensor.name.endswith("word_embeddings.weight"):
                small = onnx.numpy_helper.to_array(tensor)[:5]
                tensor.CopyFrom(onnx.numpy_helper.from_array(small, tensor.name))

    edit_graph(folder / "onnx" / "model.onnx", shrink)
    encoder = Encoder(folder, backend="onnx")
    with pytest.raises(RuntimeError, match=r"model\.onnx: ONNX Runtime failed"):
        encoder.encode("hello world")
    assert capfd.readouterr() == ("", "")


def test_an_exception_of_a_signal_handler_passes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxruntime

    def interrupted(*_: object, **__: object) -> None:
        raise TimeoutError(
            "of the handler of SIGALRM, which Python calls when the call into C++ has returned"
        )

    encoder = Encoder(folder, backend="onnx")
    with monkeypatch.context() as patch:
        patch.setattr(onnxruntime.InferenceSession, "run_with_iobinding", interrupted)
        with pytest.raises(TimeoutError):
            encoder.encode("hello world")
    encoder.encode("hello world")
    monkeypatch.setattr(onnxruntime, "InferenceSession", interrupted)
    with pytest.raises(TimeoutError):
        Encoder(folder, backend="onnx")


def test_onnxruntime_is_missing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match=r'pip install "embedkit\[onnx\]"'):
        Encoder(folder, backend="onnx")
