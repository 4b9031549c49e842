"""Written model folders against `embedkit.Encoder` and sentence-transformers; how a backbone is shortened."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
sentence_transformers = pytest.importorskip("sentence_transformers")

from embedkit.training import backbone
from embedkit.training.linear_map import LinearMap
from embedkit.training.lora import LoraOptions
from embedkit.training.model import ModelOptions, Projection, SentenceModel, options_of
from embedkit.training.postprocess import append_map
from safetensors.numpy import load_file
from tiny_families import KINDS, tiny

from embedkit import Encoder
from embedkit.cli.model import main
from embedkit.model_folder.folder import BUILTIN
from embedkit.model_folder.weights import WEIGHTS_FILES

pytestmark = pytest.mark.filterwarnings("ignore:.*longer than max_length")


def load(folder: Path, **options: Any) -> SentenceModel:
    return SentenceModel.load(ModelOptions(str(folder), **{"max_length": 32, **options})).eval()


def saved(model: SentenceModel, folder: Path) -> Path:
    folder.mkdir()
    model.save(folder)
    return folder


def check_everywhere(model: SentenceModel, folder: Path, texts: list[str]) -> Any:
    """The model's own vectors, after comparing them with those of the two readers of its folder."""
    own = model.encode(texts, batch_tokens=500)
    reader = sentence_transformers.SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    expected = reader.encode(texts, batch_size=64, show_progress_bar=False)
    assert reader.max_seq_length == model.options.max_length
    scale = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(own, expected, atol=2e-6 * scale)
    np.testing.assert_allclose(Encoder(folder, threads=1).encode(texts), expected, atol=2e-6 * scale)
    assert np.std(own, axis=0).max() > 0.01
    return own


@pytest.mark.parametrize(
    "options",
    [
        ("mean", None, False),
        ("mean", "identity", True),
        ("max", None, True),
        ("max", "tanh", False),
        ("cls", "identity", False),
        ("cls", "tanh", True),
    ],
)
def test_the_folder_loads_with_equal_vectors(
    options: tuple[str, str | None, bool],
    make_model: Callable[..., Path],
    texts: list[str],
    tmp_path: Path,
) -> None:
    pooling, activation, normalize = options
    torch.manual_seed(1)
    projection = None if activation is None else Projection(12, activation)
    model = load(make_model(), pooling=pooling, projection=projection, normalize=normalize)
    folder = saved(model, tmp_path / "model")
    vectors = check_everywhere(model, folder, texts[:120])
    assert vectors.shape == (120, 32 if activation is None else 12)
    again = load(folder, pooling=pooling, projection=projection, normalize=normalize)
    assert np.array_equal(again.encode(texts[:120], batch_tokens=500), vectors)  # the projection as well


def test_an_int8_folder_is_a_start(make_model: Callable[..., Path], texts: list[str], tmp_path: Path) -> None:
    with Encoder(make_model(), precision="fp32") as encoder:
        encoder.save(tmp_path / "int8", "int8")
    assert main(["convert", str(tmp_path / "int8"), str(tmp_path / "floats"), "--precision", "fp32"]) == 0
    model = load(tmp_path / "int8", freeze_embeddings=True)
    exact = dict(load(tmp_path / "floats").backbone.named_parameters())
    moved = 0
    for name, started in model.backbone.named_parameters():
        step = exact[name].abs().amax(-1, keepdim=True) / 127
        away = (started - exact[name]).abs()
        assert (away <= 0.5001 * step).all()
        moved += int((away > 0).any())
    assert moved == sum(name.startswith("encoder.") and x.dim() == 2 for name, x in exact.items())
    again = load(tmp_path / "int8", freeze_embeddings=True)
    assert np.array_equal(model.encode(texts[:50]), again.encode(texts[:50]))
    check_everywhere(model, saved(model, tmp_path / "again"), texts[:50])


def test_lora_leaves_the_embeddings_of_an_int8_folder_at_their_integers(
    make_model: Callable[..., Path], tmp_path: Path
) -> None:
    """Its additions are merged into the layers, whose small updates must survive int8."""
    pytest.importorskip("peft")
    with Encoder(make_model(), precision="fp32") as encoder:
        encoder.save(tmp_path / "int8", "int8")
    at_integers = load(tmp_path / "int8", freeze_embeddings=True).backbone.embeddings
    model = load(tmp_path / "int8", lora=LoraOptions())
    embeddings = model.backbone.get_base_model().embeddings
    for name, weight in embeddings.named_parameters():
        assert torch.equal(weight, at_integers.get_parameter(name)), name
    stored = load_file(tmp_path / "int8" / WEIGHTS_FILES["int8"])
    name = "encoder.layer.0.intermediate.dense"
    weight = model.backbone.get_base_model().get_submodule(name).weight.detach().numpy()
    places = weight / stored[f"{name}.weight_scale"][:, None] - stored[f"{name}.weight"]
    assert np.abs(places).mean() == pytest.approx(0.25, abs=0.03)
    name = "word_embeddings"  # which it trains as well if a target names them
    named = load(tmp_path / "int8", lora=LoraOptions(targets=[name, "query"])).backbone.get_base_model()
    trained = named.embeddings.get_submodule(name).get_base_layer().weight
    assert not torch.equal(trained, at_integers.get_submodule(name).weight)


def test_small_updates_of_an_int8_start_survive_int8(make_model: Callable[..., Path], tmp_path: Path) -> None:
    """Each weight moves by a fifth of its step: from the integers themselves, none would change."""
    with Encoder(make_model(), precision="fp32") as encoder:
        encoder.save(tmp_path / "int8", "int8")
    model = load(tmp_path / "int8")
    name = "encoder.layer.0.intermediate.dense.weight"
    weight = model.backbone.get_parameter(name)
    before = load_file(tmp_path / "int8" / WEIGHTS_FILES["int8"])
    scale = torch.from_numpy(before[f"{name}_scale"])[:, None]
    with torch.no_grad():
        weight += 0.2 * scale
    with Encoder(saved(model, tmp_path / "trained"), precision="fp32") as encoder:
        encoder.save(tmp_path / "trained-int8", "int8")
    after = load_file(tmp_path / "trained-int8" / WEIGHTS_FILES["int8"])
    values = [one[name] * one[f"{name}_scale"][:, None] for one in (before, after)]
    mean = float(((values[1] - values[0]) / scale.numpy()).mean())
    assert mean == pytest.approx(0.2, abs=0.03)


def test_int8_weights_of_another_model_are_refused(make_model: Callable[..., Path], tmp_path: Path) -> None:
    with Encoder(make_model(), precision="fp32") as encoder:
        encoder.save(tmp_path / "int8", "int8")
    config = json.loads((tmp_path / "int8" / "config.json").read_text())
    (tmp_path / "int8" / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 9}))
    with pytest.raises(ValueError, match="layer"):
        load(tmp_path / "int8")


def test_weights_that_a_model_lacks_are_named(make_model: Callable[..., Path]) -> None:
    """transformers leaves them random."""
    folder = make_model()
    layers = json.loads((folder / "config.json").read_text())["num_hidden_layers"]
    with pytest.raises(ValueError, match=rf"the weights lack .*layer\.{layers}\..*of another model"):
        load(folder, config={"num_hidden_layers": layers + 1})


def test_damaged_weights_are_named(make_model: Callable[..., Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(make_model(), tmp_path / "copy"))
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"copy: its weights are damaged .*; fetch them again"):
        load(folder)


def test_a_folder_with_a_graph_alone_is_no_start(make_model: Callable[..., Path], tmp_path: Path) -> None:
    folder = Path(
        shutil.copytree(make_model(), tmp_path / "graph", ignore=shutil.ignore_patterns("*.safetensors"))
    )
    (folder / "model.onnx").touch()
    with pytest.raises(FileNotFoundError, match=r"graph/model\.safetensors is missing: .*exported from"):
        load(folder)


def test_the_built_in_model_is_a_start() -> None:
    model = SentenceModel.load(options_of(BUILTIN.name)).eval()
    texts = ["A first text.", "Where is the second one?"]
    with Encoder(threads=1) as encoder:
        cosines = (model.encode(texts) * encoder.encode(texts)).sum(axis=1)
    assert cosines.min() > 0.995  # that of int8 products


@pytest.mark.parametrize("prompts", [{"query": "query: ", "passage": "passage: "}, {}])
def test_the_backbones_prompts_are_kept(
    prompts: dict[str, str], make_model: Callable[..., Path], texts: list[str], tmp_path: Path
) -> None:
    """As in E5: two prompts, neither of them the default."""
    source = make_model(prompts=prompts, similarity_fn_name="dot", include_prompt=False)
    model = load(source, projection=Projection(12), normalize=True)
    folder = saved(model, tmp_path / "model")
    reader = sentence_transformers.SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    encoder = Encoder(folder, threads=1)
    for one in (reader, encoder):
        assert {name: text for name, text in one.prompts.items() if text} == prompts
        assert one.default_prompt_name is None
        assert one.similarity_fn_name == "dot"
    check_everywhere(model, folder, texts[:20])  # training adds no prompt
    for name in prompts:
        expected = reader.encode(texts[:20], prompt_name=name, show_progress_bar=False)
        np.testing.assert_allclose(encoder.encode(texts[:20], prompt_name=name), expected, atol=2e-6)
        assert not np.allclose(expected, model.encode(texts[:20]), atol=1e-3)
    own = load(source, prompts={"query": "find "}, keep_prompts=False)
    bare = Encoder(saved(own, tmp_path / "bare"))
    assert {name: text for name, text in bare.prompts.items() if text} == {"query": "find "}
    assert bare.default_prompt_name is None
    prompted = bare.encode(texts[:5], prompt_name="query")  # whose tokens are pooled, as in training
    np.testing.assert_allclose(prompted, own.encode([f"find {text}" for text in texts[:5]]), atol=2e-6)
    random = load(source, random=True)
    assert Encoder(saved(random, tmp_path / "random")).similarity_fn_name == "cosine"


@pytest.mark.parametrize(
    ("prompts", "default"),
    [
        ({"query": "the day ", "passage": "many people "}, None),
        ({"query": "the day "}, "query"),
        ({"query": "the day ", "document": "many people "}, "document"),
        ({}, None),
    ],
)
def test_dev_sets_are_encoded_as_readers_of_the_folder_do(
    prompts: dict[str, str],
    default: str | None,
    make_model: Callable[..., Path],
    texts: list[str],
    tmp_path: Path,
) -> None:
    model = load(make_model(prompts=prompts, default_prompt_name=default))
    folder = saved(model, tmp_path / "model")
    reader = sentence_transformers.SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    for name in ("encode_query", "encode_document"):
        expected = getattr(reader, name)(texts[:20], show_progress_bar=False)
        np.testing.assert_allclose(getattr(model, name)(texts[:20]), expected, rtol=1e-5, atol=2e-6)
        np.testing.assert_allclose(getattr(Encoder(folder), name)(texts[:20]), expected, rtol=1e-5, atol=2e-6)
        np.testing.assert_allclose(getattr(model, name)(texts[3]), expected[3], rtol=1e-5, atol=2e-6)
    np.testing.assert_allclose(model.encode(texts[3]), model.encode(texts[:20])[3], rtol=1e-5, atol=2e-6)


def test_training_continues_after_saving(make_model: Callable[..., Path], tmp_path: Path) -> None:
    model = load(make_model())
    before = model.encode(["the weather", "is lovely today"])
    saved(model, tmp_path / "model")
    assert np.array_equal(model.encode(["the weather", "is lovely today"]), before)
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert "embedkit" not in json.dumps(config)
    assert not any(path.suffix in (".bin", ".pt") for path in (tmp_path / "model").rglob("*"))


@pytest.mark.parametrize(("layers", "kept"), [(2, [0, 3]), ([1, 2], [1, 2]), (1, [0]), (4, [0, 1, 2, 3])])
def test_layers(
    layers: int | list[int],
    kept: list[int],
    make_model: Callable[..., Path],
    texts: list[str],
    tmp_path: Path,
) -> None:
    source = make_model(layers=4)
    model = load(source, layers=layers)
    folder = saved(model, tmp_path / "model")
    check_everywhere(model, folder, texts[:20])
    written = transformers.AutoModel.from_pretrained(folder)
    whole = transformers.AutoModel.from_pretrained(source)
    assert written.config.num_hidden_layers == len(kept)
    for layer, number in zip(written.encoder.layer, kept, strict=True):
        for name, parameter in whole.encoder.layer[number].named_parameters():
            assert torch.equal(layer.get_parameter(name), parameter), name


@pytest.mark.parametrize(
    "kind",
    [
        "modernbert",
        "gte",
        "nomic",
        "qwen3",
        "qwen2",
        "mistral",
        "gemma",
        "electra",
        "eurobert",
        "t5-gated",
        "deberta",
    ],
)
def test_layers_of_families(kind: str, texts: list[str], tmp_path: Path) -> None:
    if not hasattr(transformers, KINDS[kind][0]):
        pytest.skip("this transformers lacks the model")
    source = tiny(tmp_path, kind)
    model = load(source, layers=[0, 3], freeze_embeddings=True)
    assert not model.backbone.get_input_embeddings().weight.requires_grad
    folder = saved(model, tmp_path / "saved")
    own = model.encode(texts[:20])
    with Encoder(folder, precision="fp32", max_length=32) as encoder:
        np.testing.assert_allclose(encoder.encode(texts[:20]), own, atol=1e-5)
    assert not np.allclose(load(source).encode(texts[:20]), own, atol=0.1)


def test_layers_that_cannot_be_chosen(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "m").mkdir()
    with pytest.raises(ValueError, match="AlbertModel has no list of layers"):
        load(tiny(tmp_path / "a", "albert"), layers=2)
    if hasattr(transformers, "ModernBertConfig"):
        with pytest.raises(ValueError, match="first layer of ModernBertModel is made for its place"):
            load(tiny(tmp_path / "m", "modernbert"), layers=[1, 3])
    (tmp_path / "t").mkdir()
    with pytest.raises(ValueError, match="first layer of T5EncoderModel is made for its place"):
        load(tiny(tmp_path / "t", "t5"), layers=[1, 3])


@pytest.mark.parametrize("layers", [0, 5, [1, 0], [0, 0], [4], []])
def test_layers_that_are_not_there(layers: Any, make_model: Callable[..., Path]) -> None:
    with pytest.raises(ValueError, match=r"model\.layers .* 4 layers"):
        load(make_model(layers=4), layers=layers)


def test_random_models_follow_the_configuration(
    make_model: Callable[..., Path], texts: list[str], tmp_path: Path
) -> None:
    source = make_model()  # draws its weights, if it is the first to ask for them
    torch.manual_seed(0)
    model = load(source, random=True, config={"num_hidden_layers": 3, "intermediate_size": 40})
    torch.manual_seed(0)
    same = load(source, random=True, config={"num_hidden_layers": 3, "intermediate_size": 40})
    assert len(model.backbone.encoder.layer) == 3
    assert model.backbone.encoder.layer[0].intermediate.dense.out_features == 40
    check_everywhere(model, saved(model, tmp_path / "model"), texts[:20])
    assert np.array_equal(model.encode(texts[:5]), same.encode(texts[:5]))
    with pytest.raises(ValueError, match="'num_layers' is not a key"):
        load(make_model(), config={"num_layers": 3})
    with pytest.raises(ValueError, match="num_hidden_layers"):
        load(make_model(), random=True, layers=1)


def test_dropout_reaches_the_backbone_and_not_the_reader(make_model: Callable[..., Path]) -> None:
    model = load(make_model(), dropout=0.3)
    rates = {module.p for module in model.backbone.modules() if isinstance(module, torch.nn.Dropout)}
    assert rates == {0.3}
    assert np.array_equal(model.train().encode(["a", "b"]), model.eval().encode(["a", "b"]))
    assert not model.training


def test_dropout_by_any_name(tmp_path: Path) -> None:
    folder = tiny(tmp_path / "modernbert", "modernbert")
    config = load(folder, dropout=0.3).backbone.config
    assert {config.attention_dropout, config.mlp_dropout, config.embedding_dropout} == {0.3}


def test_without_dropout_none_can_be_set(
    make_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backbone, "_DROPOUTS", ("attn_pdrop",))
    with pytest.raises(ValueError, match=r"model\.dropout: .* \(bert\) has no dropout; remove it"):
        load(make_model(), dropout=0.3)


def test_texts_are_lowered_as_the_folder_says(make_model: Callable[..., Path], tmp_path: Path) -> None:
    folder = shutil.copytree(make_model(), tmp_path / "start")
    for name, change in (
        ("tokenizer_config.json", {"do_lower_case": False}),
        ("sentence_bert_config.json", {"max_seq_length": 64, "do_lower_case": True}),
    ):
        path = folder / name
        content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        path.write_text(json.dumps({**content, **change}), encoding="utf-8")
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["normalizer"]["lowercase"] = False
    path.write_text(json.dumps(content), encoding="utf-8")
    texts = ["The PEOPLE Find Water", "the people find water"]
    expected = Encoder(folder).encode(texts)
    np.testing.assert_array_equal(expected[0], expected[1])
    model = SentenceModel.load(options_of(str(folder)))
    np.testing.assert_allclose(model.encode(texts), expected, atol=1e-5)
    np.testing.assert_allclose(Encoder(saved(model, tmp_path / "trained")).encode(texts), expected, atol=1e-5)


def test_vectors_that_cannot_be_trained_are_told(
    make_model: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "embedkit")
    load(make_model(pooling="max"), max_length=64)
    assert "training leaves out its pooling; to keep what it had: model.pooling=max\n" in caplog.text
    load(make_model(max_seq_length=50), max_length=20)
    told = "training leaves out its length of 50 tokens; to keep what it had: model.max_length=50"
    assert told in caplog.text
    caplog.clear()
    load(make_model(max_seq_length=50), max_length=50)
    assert "leaves out" not in caplog.text
    folder = make_model(pooling="weightedmean")
    load(folder)
    assert "cannot be trained as they are" in caplog.text and "model.pooling=weightedmean" not in caplog.text
    with pytest.raises(ValueError, match="training has no weightedmean, only mean, max, cls"):
        options_of(str(folder))


def test_frozen_embeddings(make_model: Callable[..., Path]) -> None:
    model = load(make_model(), freeze_embeddings=True)
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert frozen == {name for name, _ in model.named_parameters() if ".embeddings." in name}


def test_more_tokens_than_positions_are_refused(make_model: Callable[..., Path]) -> None:
    with pytest.raises(ValueError, match=r"model\.max_length is 65, .* 64 positions"):
        load(make_model(), max_length=65)


def test_texts_are_cut_as_in_the_readers(make_model: Callable[..., Path], tmp_path: Path) -> None:
    model = load(make_model(), max_length=8)
    folder = saved(model, tmp_path / "model")
    check_everywhere(model, folder, ["a the of " * 20, "a", "to be or not to be that is", "", "CAPITALS"])


def test_a_folder_with_vocab_txt_alone(make_model: Callable[..., Path], tmp_path: Path) -> None:
    """As in raw BERT checkpoints: no tokenizer.json, perhaps no tokenizer_config.json."""
    source = tmp_path / "raw"
    source.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copyfile(make_model() / name, source / name)
    tokenizer = json.loads((make_model() / "tokenizer.json").read_text(encoding="utf-8"))
    words = sorted(tokenizer["model"]["vocab"].items(), key=lambda item: item[1])
    (source / "vocab.txt").write_text("".join(f"{word}\n" for word, _ in words), encoding="utf-8")
    model = load(source)
    folder = saved(model, tmp_path / "model")
    assert (folder / "vocab.txt").is_file()
    check_everywhere(model, folder, ["The WEATHER is lovely", "naïve café", "unknownword, day!", "東京"])


def test_the_case_of_texts_is_the_folders(make_model: Callable[..., Path], tmp_path: Path) -> None:
    """`do_lower_case` of the source's sentence_bert_config.json holds in training and in the folder."""
    source = tmp_path / "source"
    shutil.copytree(make_model(), source)
    path = source / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    tokenizer["normalizer"]["lowercase"] = False
    path.write_text(json.dumps(tokenizer), encoding="utf-8")
    config = source / "sentence_bert_config.json"
    config.write_text(json.dumps({"max_seq_length": 40, "do_lower_case": True}))
    model = load(source)
    vectors = check_everywhere(model, saved(model, tmp_path / "model"), ["the weather", "THE weather", "a"])
    np.testing.assert_array_equal(vectors[0], vectors[1])


def test_a_projection_starts_from_the_folders_dense(make_model: Callable[..., Path]) -> None:
    source = make_model(dense=[(12, "Tanh", True)])
    torch.manual_seed(0)
    first = load(source, projection=Projection(12, "tanh"))
    torch.manual_seed(1)
    second = load(source, projection=Projection(12, "tanh"))
    assert torch.equal(first.projection.weight, second.projection.weight)  # type: ignore[union-attr]
    other = load(source, projection=Projection(12, "identity"))  # another activation: another layer
    assert not torch.equal(first.projection.weight, other.projection.weight)  # type: ignore[union-attr]


@pytest.mark.parametrize("shape", ["whitened", "two modes"])
def test_a_dense_in_another_place_is_no_start(
    shape: str, make_model: Callable[..., Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a whitened encoder it is fitted on vectors of length 1, of several modes it takes all of them."""
    caplog.set_level("INFO", "embedkit")
    if shape == "whitened":
        source = tmp_path / "whitened"
        with Encoder(make_model(normalize=True)) as encoder:
            append_map(encoder, LinearMap(np.ones((32, 12), np.float32), np.ones(32, np.float32)), source)
    else:
        source = make_model(pooling=("mean", "max"), dense=[(12, "Identity", True)])
    first, second = (load(source, projection=Projection(12)) for _ in range(2))
    assert not torch.equal(first.projection.weight, second.projection.weight)  # type: ignore[union-attr]
    assert "not straight after one pooling mode; the projection does not start from it" in caplog.text
    with pytest.raises(ValueError, match="expected one pooling mode, then at most one Dense and one Norm"):
        options_of(str(source))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_length": 2}, "model.max_length"),
        ({"dropout": 1.0}, "model.dropout"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelOptions("folder", **options)
    with pytest.raises(ValueError, match="dimension"):
        Projection(0)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load(tmp_path / "nowhere")
