"""Saving, fingerprints and verification."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from embedkit import Encoder
from embedkit.model_folder.fingerprint import fingerprint
from embedkit.model_folder.folder import Settings, open_folder
from embedkit.model_folder.saving import DenseWeights, append_dense, new_folder

Make = Callable[..., Path]
FULL: dict[str, Any] = {
    "pooling": ("mean", "cls"),
    "include_prompt": False,
    "dense": ((24, "Tanh", True), (16, "GELU", False)),
    "normalize": True,
    "max_seq_length": 40,
    "prompts": {"query": "query: ", "document": "passage: "},
    "similarity_fn_name": "dot",
}
pytestmark = pytest.mark.filterwarnings("ignore:.*longer than max_length")


@pytest.mark.parametrize("options", [{}, FULL, {"pooling": ("lasttoken", "max"), "dtype": "float16"}])
def test_fp32_round_trip(make_model: Make, tmp_path: Path, texts: list[str], options: dict[str, Any]) -> None:
    transformer = pytest.importorskip("sentence_transformers").SentenceTransformer
    source = Encoder(make_model(**options))
    source.save(tmp_path / "saved")
    saved = Encoder(tmp_path / "saved")
    for call in ({}, {"prompt_name": "query"}):
        expected = source.encode(texts, **call)
        np.testing.assert_array_equal(saved.encode(texts, **call), expected)
        theirs = transformer(str(tmp_path / "saved"), device="cpu")
        assert theirs.max_seq_length == source.max_seq_length
        assert theirs.similarity_fn_name == source.similarity_fn_name == saved.similarity_fn_name
        np.testing.assert_allclose(theirs.encode(texts, **call), expected, atol=1e-5)
    assert saved.fingerprint == source.fingerprint == saved.verify() == source.verify()
    assert not list((tmp_path / "saved").rglob("*.bin"))


def test_int8_round_trip(make_model: Make, tmp_path: Path, texts: list[str]) -> None:
    source = make_model(**FULL)
    quantized = Encoder(source, precision="int8")
    quantized.save(tmp_path / "a")
    Encoder(source).save(tmp_path / "b", precision="int8")
    assert (tmp_path / "a" / "model.int8.safetensors").read_bytes() == (
        tmp_path / "b" / "model.int8.safetensors"
    ).read_bytes()
    saved = Encoder(tmp_path / "a")
    assert saved.describe()["precision"] == "int8"
    np.testing.assert_array_equal(saved.encode(texts), quantized.encode(texts))
    # The int8 form of a model is the same model, and so is a copy of that.
    assert saved.fingerprint == Encoder(source).fingerprint == saved.verify()
    saved.save(tmp_path / "c")
    copy = Encoder(tmp_path / "c")
    assert copy.verify() == saved.fingerprint
    np.testing.assert_array_equal(copy.encode(texts), saved.encode(texts))


def test_int8_folder_has_no_fp32(make_model: Make, tmp_path: Path) -> None:
    Encoder(make_model()).save(tmp_path / "int8", precision="int8")
    with pytest.raises(ValueError, match=r"precision='fp32': .*int8 holds int8 weights and no fp32 weights"):
        Encoder(tmp_path / "int8", precision="fp32")
    with pytest.raises(ValueError, match="and no fp32 weights"):
        Encoder(tmp_path / "int8").save(tmp_path / "x", precision="fp32")
    with pytest.raises(ValueError, match="unknown precision='int4'"):
        Encoder(tmp_path / "int8").save(tmp_path / "x", precision="int4")
    assert not (tmp_path / "x").exists()


def test_other_readers_do_not_load_int8_as_weights(make_model: Make, tmp_path: Path) -> None:
    transformer = pytest.importorskip("sentence_transformers").SentenceTransformer
    Encoder(make_model()).save(tmp_path / "int8", precision="int8")
    with pytest.raises(OSError, match=r"model\.safetensors"):
        transformer(str(tmp_path / "int8"), device="cpu", local_files_only=True)


def test_settings_are_saved(make_model: Make, tmp_path: Path) -> None:
    source = make_model()
    encoder = Encoder(
        source, max_length=20, prompts={"query": "q "}, default_prompt_name="query",
        similarity_fn_name="euclidean", truncate_dim=8,
    )  # fmt: skip
    encoder.save(tmp_path / "saved")
    saved = Encoder(tmp_path / "saved")
    assert (
        saved.max_seq_length == 20
        and saved.prompts["query"] == "q "
        and saved.similarity_fn_name == "euclidean"
    )
    assert saved.default_prompt_name == "query" and saved.get_embedding_dimension() == 8
    np.testing.assert_array_equal(saved.encode("day"), encoder.encode("day"))
    assert saved.verify() == saved.fingerprint != encoder.fingerprint == Encoder(source).fingerprint


def test_documents_are_kept(make_model: Make, tmp_path: Path) -> None:
    source = Path(shutil.copytree(make_model(), tmp_path / "source"))
    for name in ("LICENSE", "NOTICE", "README.md"):
        (source / name).write_text(name)
    (source / "secret.txt").write_text("not part of the model")
    Encoder(source).save(tmp_path / "saved", precision="int8")
    for name in ("LICENSE", "NOTICE", "README.md"):
        assert (tmp_path / "saved" / name).read_text() == name
    assert not (tmp_path / "saved" / "secret.txt").exists()


def test_a_folder_in_the_home_folder(
    make_model: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    encoder = Encoder(make_model())
    encoder.save("~/saved")
    assert (tmp_path / "saved" / "modules.json").exists()
    assert Encoder("~/saved").verify() == encoder.fingerprint


def test_nothing_is_overwritten(make_model: Make, tmp_path: Path) -> None:
    source = Path(shutil.copytree(make_model(), tmp_path / "source"))
    encoder = Encoder(source)
    with pytest.raises(FileExistsError, match="exists and is not empty; remove it or save to another folder"):
        encoder.save(source)
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileExistsError, match="not empty"):
        encoder.save(tmp_path / "file")
    (tmp_path / "empty").mkdir()
    encoder.save(str(tmp_path / "empty"))
    encoder.save(tmp_path / "new" / "deep")
    assert Encoder(tmp_path / "new" / "deep").fingerprint == encoder.fingerprint


def test_a_link_to_an_empty_folder_is_followed(make_model: Make, tmp_path: Path) -> None:
    encoder = Encoder(make_model())
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    encoder.save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert Encoder(tmp_path / "empty").verify() == encoder.fingerprint
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "link"]


def test_places_that_cannot_be_replaced_are_refused_before_the_work(
    make_model: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = Encoder(make_model())
    monkeypatch.setattr("embedkit.model_folder.saving.copy_without_weights", None)
    for name in ("here", "disk"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for same in (".", "../here"):
        with pytest.raises(FileExistsError, match=r"is the working directory, .* save to a folder inside it"):
            encoder.save(same)
    (tmp_path / "dangling").symlink_to("nothing")
    with pytest.raises(FileExistsError, match="dangling is a link to nothing; remove it"):
        encoder.save(tmp_path / "dangling")
    monkeypatch.setattr("os.path.ismount", lambda path: Path(path) == tmp_path / "disk")
    with pytest.raises(FileExistsError, match="disk is a mount point"):
        encoder.save(tmp_path / "disk")


def test_code_that_auto_map_names_is_kept(make_model: Make, tmp_path: Path) -> None:
    source = Path(shutil.copytree(make_model(), tmp_path / "source"))
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "auto_map": {"AutoModel": "mine.Mine"}}))
    (source / "mine.py").write_text("class Mine: ...")
    Encoder(source).save(tmp_path / "saved")
    assert (tmp_path / "saved" / "mine.py").read_text() == "class Mine: ..."


def test_the_precision_of_an_index_is_not_that_of_other_vectors(make_model: Make, tmp_path: Path) -> None:
    source = Path(shutil.copytree(make_model(), tmp_path / "source"))
    settings = {"prompts": {}, "index_precision": "int6"}
    (source / "config_sentence_transformers.json").write_text(json.dumps(settings))
    kept = Encoder(source)
    kept.save(tmp_path / "kept")
    assert open_folder(tmp_path / "kept").index_precision == "int6"
    Encoder(source, truncate_dim=8).save(tmp_path / "truncated")
    assert open_folder(tmp_path / "truncated").index_precision is None
    width = kept.get_embedding_dimension()
    append_dense(tmp_path / "kept", DenseWeights(np.eye(5, width, dtype=np.float32), np.zeros(5, np.float32)))
    assert open_folder(tmp_path / "kept").index_precision is None


def test_a_folder_that_another_process_has_written_meanwhile(tmp_path: Path) -> None:
    with (
        pytest.raises(FileExistsError, match="was written by another process meanwhile; remove it"),
        new_folder(tmp_path / "model"),
        new_folder(tmp_path / "model") as other,
    ):
        (other / "file").write_text("theirs")
    assert (tmp_path / "model" / "file").read_text() == "theirs"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_folder_that_cannot_be_made_is_named_as_given(tmp_path: Path) -> None:
    target = tmp_path / ("x" * 250)  # the hidden folder's name is longer than file systems allow
    with pytest.raises(OSError) as caught, new_folder(target):
        pass
    assert caught.value.filename == str(target)


def test_a_failed_save_leaves_nothing(make_model: Make, tmp_path: Path) -> None:
    source = Path(shutil.copytree(make_model(), tmp_path / "source"))
    encoder = Encoder(source)
    (source / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError):
        encoder.save(tmp_path / "saved")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize(
    ("prompts", "default", "error"),
    [
        ({}, "nope", "unknown prompt_name='nope'; this model's prompts are 'query', 'document'"),
        ({"x": "\ud800"}, None, r"prompts\['x'\] holds a lone surrogate"),
        ({"x": 3}, None, r"prompts\['x'\] must be a str, not int"),
    ],
)
def test_prompts_that_cannot_be_opened_are_not_saved(
    make_model: Make, tmp_path: Path, prompts: dict[str, Any], default: str | None, error: str
) -> None:
    encoder = Encoder(make_model())
    encoder.prompts.update(prompts)
    encoder.default_prompt_name = default
    with pytest.raises((TypeError, ValueError), match=error):
        encoder.save(tmp_path / "saved")
    assert not list(tmp_path.iterdir())


def test_an_integer_of_numpy_as_truncate_dim_is_saved(make_model: Make, tmp_path: Path) -> None:
    encoder = Encoder(make_model())
    encoder.truncate_dim = np.int64(8)
    encoder.save(tmp_path / "saved")
    assert Encoder(tmp_path / "saved").truncate_dim == 8


def test_stored_types_and_names_do_not_change_the_fingerprint(make_model: Make, tmp_path: Path) -> None:
    source = make_model(dtype="float16")
    Encoder(source).save(tmp_path / "fp32")
    tensors = load_file(source / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {np.dtype(np.float16)}
    renamed = Path(shutil.copytree(source, tmp_path / "renamed"))
    save_file({"bert." + name: tensor for name, tensor in tensors.items()}, renamed / "model.safetensors")
    tokenizer = json.loads((renamed / "tokenizer.json").read_text())
    tokenizer["truncation"] = {"max_length": 9, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    (renamed / "tokenizer.json").write_text(json.dumps(tokenizer, indent=1))
    fingerprints = {Encoder(path).fingerprint for path in (source, tmp_path / "fp32", renamed)}
    assert len(fingerprints) == 1


def test_what_changes_a_model_changes_its_fingerprint(make_model: Make, tmp_path: Path) -> None:
    source = make_model(**FULL)
    seen = {Encoder(source).fingerprint}

    def changed(change: Callable[[Path], None]) -> None:
        folder = Path(shutil.copytree(source, tmp_path / f"changed{len(seen)}"))
        change(folder)
        seen.add(Encoder(folder).fingerprint)

    def edit(file: str, **values: Any) -> Callable[[Path], None]:
        def apply(folder: Path) -> None:
            content = json.loads((folder / file).read_text())
            (folder / file).write_text(json.dumps({**content, **values}))

        return apply

    def one_weight(file: str, name: str) -> Callable[[Path], None]:
        def apply(folder: Path) -> None:
            tensors = load_file(folder / file)
            tensors[name].reshape(-1)[0] += 1
            save_file(tensors, folder / file)

        return apply

    changes = [
        edit("config.json", hidden_act="relu"),
        edit("1_Pooling/config.json", pooling_mode=["cls", "mean"]),
        edit("1_Pooling/config.json", include_prompt=True),
        edit("2_Dense/config.json", activation_function="torch.nn.modules.linear.Identity"),
        edit("config_sentence_transformers.json", prompts={"query": "q: "}),
        edit("config_sentence_transformers.json", default_prompt_name="query"),
        edit("config_sentence_transformers.json", truncate_dim=4),
        edit("sentence_bert_config.json", max_seq_length=30),
        edit("sentence_bert_config.json", do_lower_case=True),
        edit("tokenizer.json", normalizer=None),
        edit("tokenizer_config.json", tokenizer_class="BertTokenizer", do_lower_case=False),
        edit("tokenizer_config.json", truncation_side="left"),
        one_weight("model.safetensors", "encoder.layer.1.output.dense.bias"),
        one_weight("2_Dense/model.safetensors", "linear.weight"),
        lambda folder: (folder / "modules.json").write_text(
            json.dumps(json.loads((folder / "modules.json").read_text())[:-1])
        ),
    ]
    for count, change in enumerate(changes, 2):
        changed(change)
        assert len(seen) == count


def test_a_post_processor_that_is_replaced_need_not_be_known(make_model: Make, tmp_path: Path) -> None:
    source = make_model()
    folder = Path(shutil.copytree(source, tmp_path / "copy"))
    for name, values in {
        "tokenizer.json": {"post_processor": {"type": "Other"}},
        "tokenizer_config.json": {"tokenizer_class": "BertTokenizer"},
    }.items():
        content = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**content, **values}))
    assert np.array_equal(Encoder(folder).encode("a b"), Encoder(source).encode("a b"))
    assert Encoder(folder).fingerprint != Encoder(source).fingerprint


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_verify_finds_changes(make_model: Make, tmp_path: Path, precision: str) -> None:
    Encoder(make_model(dense=((8, "Tanh", True),))).save(tmp_path / "saved", precision=precision)
    file = "model.safetensors" if precision == "fp32" else "model.int8.safetensors"

    def copy() -> Path:
        return Path(shutil.copytree(tmp_path / "saved", tmp_path / f"copy{len(list(tmp_path.iterdir()))}"))

    damaged = copy()
    tensors = load_file(damaged / file)
    row = tensors["encoder.layer.0.output.dense.weight"]
    row[0, 0] = 5 if row[0, 0] != 5 else 6
    save_file(tensors, damaged / file)
    with pytest.raises(ValueError, match="the weights have changed since they were saved"):
        Encoder(damaged).verify()
    for name, key, value in (
        ("2_Dense/config.json", "activation_function", "torch.nn.modules.activation.GELU"),
        ("sentence_bert_config.json", "max_seq_length", 9),
    ):
        changed = copy()
        content = json.loads((changed / name).read_text())
        (changed / name).write_text(json.dumps({**content, key: value}))
        encoder = Encoder(changed)  # opening hashes nothing large
        with pytest.raises(ValueError, match="tokenizer, pooling, head, prompts or max length have changed"):
            encoder.verify()


def test_a_vocabulary_file_is_fingerprinted_with_its_class(make_model: Make, tmp_path: Path) -> None:
    """Which special tokens it has, and how it splits words."""
    folder = Path(shutil.copytree(make_model(), tmp_path / "model"))
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").write_text("\n".join(sorted(vocabulary, key=vocabulary.get)), encoding="utf-8")
    found = []
    for kind in ("BertTokenizer", "MPNetTokenizer"):
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind}))
        found.append(fingerprint(open_folder(folder), "", Settings({}, None, 128, None)))
    assert found[0] != found[1]


def test_special_tokens_of_any_file_change_the_fingerprint(make_model: Make, tmp_path: Path) -> None:
    """Of a vocab.txt; one that says what is so without it does not."""
    source = Path(shutil.copytree(make_model(), tmp_path / "source"))
    vocabulary = json.loads((source / "tokenizer.json").read_text())["model"]["vocab"]
    (source / "tokenizer.json").unlink()
    (source / "vocab.txt").write_text("\n".join(sorted(vocabulary, key=vocabulary.get)), encoding="utf-8")
    (source / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    seen: list[str] = []
    for number, (name, content) in enumerate(
        (
            ("other.json", {}),
            ("special_tokens_map.json", {"unk_token": "[MASK]"}),
            ("special_tokens_map.json", {"cls_token": "[MASK]"}),
            ("special_tokens_map.json", {"additional_special_tokens": ["weather"]}),
            ("added_tokens.json", {"weather": vocabulary["weather"]}),
            ("tokenizer_config.json", {"tokenizer_class": "BertTokenizer", "extra_special_tokens": ["now"]}),
            ("tokenizer_config.json", {"tokenizer_class": "BertTokenizer", "query_token": "today"}),
        )
    ):
        folder = Path(shutil.copytree(source, tmp_path / str(number)))
        (folder / name).write_text(json.dumps(content))
        seen.append(Encoder(folder).fingerprint)
    assert len(set(seen)) == len(seen)
    flags = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
    usual = {"unk_token": "[UNK]", "mask_token": {"content": "[MASK]", **flags}}
    (source / "special_tokens_map.json").write_text(json.dumps(usual))
    (source / "added_tokens.json").write_text("{}")
    new = {"tokenizer_class": "BertTokenizer", "query_token": "[Q]"}  # which the vocabulary has not
    (source / "tokenizer_config.json").write_text(json.dumps(new))
    assert Encoder(source).fingerprint == seen[0]


def test_what_a_class_makes_of_the_model_changes_the_fingerprint(make_model: Make, tmp_path: Path) -> None:
    """Its unknown token, and the longest word that it splits."""
    source = make_model()
    found = []
    for name, longest, settings in (
        ("plain", 100, {}),
        ("unknown", 100, {"unk_token": "[MASK]"}),
        ("short", 4, {"tokenizer_class": "PreTrainedTokenizerFast"}),
        ("rebuilt", 4, {}),
    ):
        folder = Path(shutil.copytree(source, tmp_path / name))
        content = json.loads((folder / "tokenizer.json").read_text())
        content["model"]["max_input_chars_per_word"] = longest
        (folder / "tokenizer.json").write_text(json.dumps(content))
        settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, **settings}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        found.append((Encoder(folder).tokenize(["weather \u0d85"]), Encoder(folder).fingerprint))
    (plain, one), (unknown, two), (short, three), (rebuilt, four) = found
    assert plain == rebuilt != short and plain != unknown
    assert len({one, two, three, four}) == 4


def test_ranges_are_kept_for_int8_embeddings(make_model: Make, tmp_path: Path, texts: list[str]) -> None:
    encoder = Encoder(make_model(normalize=True))
    vectors = encoder.encode(texts)
    ranges = np.stack([vectors.min(axis=0), vectors.max(axis=0)])
    encoder.save(tmp_path / "a", ranges=ranges)
    Encoder(tmp_path / "a").save(tmp_path / "b", precision="int8")
    for folder in ("a", "b"):
        saved = Encoder(tmp_path / folder)
        lone = saved.encode(texts[7], precision="int8")
        np.testing.assert_array_equal(lone, saved.encode(texts, precision="int8", ranges=ranges)[7])
        assert len(np.unique(lone)) > 10
        np.testing.assert_array_equal(
            saved.encode(texts[7], precision="int8", normalize_embeddings=True), lone
        )
        np.testing.assert_array_equal(saved.encode(texts[7], precision="int8", truncate_dim=8), lone[:8])
        with pytest.raises(ValueError, match="those saved in the model folder are for embeddings truncated"):
            saved.encode(texts[7], precision="int8", truncate_dim=8, normalize_embeddings=True)
    Encoder(tmp_path / "b", truncate_dim=8).save(tmp_path / "c")  # with the ranges of 8 dimensions
    shorter = Encoder(tmp_path / "c")
    np.testing.assert_array_equal(shorter.encode(texts[7], precision="int8"), lone[:8])
    with pytest.raises(ValueError, match="those saved in the model folder are for embeddings truncated"):
        shorter.encode("a", precision="uint8", truncate_dim=9)
    with pytest.raises(ValueError, match=r"expected \(2, 32\)"):
        encoder.save(tmp_path / "d", ranges=ranges[:, :5])


@pytest.mark.parametrize(
    ("gone", "message"),
    [
        ("", "{folder} does not exist"),
        ("config.json", "{folder}/config.json is missing"),
        ("tokenizer.json", "{folder} holds neither tokenizer.json nor vocab.txt"),
        ("model.safetensors", "{folder}/model.safetensors is missing"),
        ("2_Dense/model.safetensors", "{folder}/2_Dense/model.safetensors is missing"),
    ],
)
def test_a_source_that_is_gone_is_named(make_model: Make, tmp_path: Path, gone: str, message: str) -> None:
    folder = Path(shutil.copytree(make_model(dense=((24, "Tanh", True),)), tmp_path / "source"))
    encoder = Encoder(folder)
    (folder / gone).rename(tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError, match=re.escape(message.format(folder=folder))) as caught:
        encoder.save(tmp_path / "target")
    assert f"saving reads {folder} again" in str(caught.value) and "target" not in str(caught.value)
    assert not list(tmp_path.glob("*target*"))


def test_a_changed_source_is_not_saved_partially(make_model: Make, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(make_model(normalize=True), tmp_path / "source"))
    encoder = Encoder(folder)
    (folder / "modules.json").unlink()
    with pytest.raises(ValueError, match=re.escape(f"{folder} has changed since the model was opened")):
        encoder.save(tmp_path / "target")
