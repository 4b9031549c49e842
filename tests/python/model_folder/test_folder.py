"""Opening model folders: every existing layout, and every kind of error."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from embedkit.model_folder.folder import open_folder
from embedkit.model_folder.modules import Dense, Normalize, Pooling
from embedkit.model_folder.weights import core_head, core_tensors

FLAGS = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}

FORWARD = {"method": "forward", "method_output_name": "last_hidden_state"}


def edit(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file; None removes one."""
    value = json.loads(path.read_text()) if path.exists() else {}
    value.update(changes)
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({k: v for k, v in value.items() if v is not None}))


def test_reads_what_sentence_transformers_wrote(folder: Path) -> None:
    model = open_folder(folder)
    assert model.config["hidden_size"] == 32 and model.config["hidden_act"] == "gelu"
    assert model.pooling == Pooling(("mean",), include_prompt=True)
    assert model.head == (Dense(folder / "2_Dense", 32, 24, True, "tanh"), Normalize())
    assert model.dimension == 24 and model.normalizes and model.precision == "fp32"
    assert model.prompts == {"query": "query: ", "document": ""}
    assert model.similarity_fn_name == "cosine" and model.default_prompt_name is None
    assert model.stamp.fingerprint is None


@pytest.mark.parametrize(
    "modes",
    [(mode,) for mode in FLAGS] + [("mean", "max"), ("cls", "mean"), ("lasttoken", "mean_sqrt_len", "cls")],
)
@pytest.mark.parametrize("style", ["flags", "names"])
def test_pooling_modes(folder: Path, modes: tuple[str, ...], style: str) -> None:
    config = folder / "1_Pooling" / "config.json"
    shutil.rmtree(folder / "2_Dense")
    edit_modules(folder, 2)
    if style == "flags":
        flags = {flag: mode in modes for mode, flag in FLAGS.items()}
        config.write_text(json.dumps({"word_embedding_dimension": 32, **flags}))
        expected = tuple(
            mode for mode in FLAGS if mode in modes
        )  # the order that old versions concatenate in
    else:
        names = [mode + "_tokens" if mode == "mean_sqrt_len" else mode for mode in modes]
        config.write_text(json.dumps({"pooling_mode": names if len(names) > 1 else names[0]}))
        expected = modes
    model = open_folder(folder)
    assert model.pooling.modes == expected
    assert model.dimension == 32 * len(modes) and not model.normalizes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query_length": 6}, "query_length is 6"),
        ({"document_length": 6}, "document_length is 6"),
        ({"query_expansion": {"length": 32}}, "query_expansion is"),
        ({"processing_kwargs": {"text": {"max_length": 6}}}, "processing_kwargs.text is {'max_length': 6}"),
        ({"tokenizer_args": {"do_lower_case": False}}, "tokenizer_args.do_lower_case is False"),
        ({"processor_kwargs": {"do_lower_case": False}}, "processor_kwargs.do_lower_case is False"),
        ({"config_args": {"is_causal": False}}, "config_args.is_causal is False"),
        ({"processor_kwargs": [1]}, "processor_kwargs must be an object"),
        ({"transformer_task": "fill-mask"}, "transformer_task is 'fill-mask'"),
        ({"transformer_task": "sequence-classification"}, "transformer_task is 'sequence-classification'"),
        ({"modality_config": {"text": FORWARD, "message": FORWARD}}, "modality_config.message is {"),
        (
            {"modality_config": {"text": {**FORWARD, "method_output_name": "pooler_output"}}},
            "modality_config.text.method_output_name is 'pooler_output'",
        ),
        (
            {"modality_config": {"text": {**FORWARD, "method": "encode"}}},
            "modality_config.text.method is 'encode'",
        ),
        ({"module_output_name": "sentence_embedding"}, "module_output_name is 'sentence_embedding'"),
    ],
)
def test_sentence_settings_that_are_not_applied(folder: Path, changes: dict[str, Any], message: str) -> None:
    edit(folder / "sentence_bert_config.json", **changes)
    with pytest.raises(ValueError, match=f"sentence_bert_config.json: {re.escape(message)}"):
        open_folder(folder)


def test_sentence_settings_that_change_nothing(folder: Path) -> None:
    kept = {
        "transformer_task": "feature-extraction",
        "processing_kwargs": {"text": {}, "image": {"size": 2}},
        "modality_config": {"text": FORWARD},
        "module_output_name": "token_embeddings",
    }
    nothing = {"query_length": None, "document_length": None, "processor_kwargs": None, "tokenizer_args": {}}
    path = folder / "sentence_bert_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **kept, **nothing}))
    edit(path, tokenizer_args={"trust_remote_code": True, "padding_side": "left"})
    assert open_folder(folder).dimension == 24


def edit_modules(folder: Path, count: int) -> None:
    path = folder / "modules.json"
    path.write_text(json.dumps(json.loads(path.read_text())[:count]))


def test_dropout_is_of_training_alone(folder: Path) -> None:
    head = open_folder(folder).head
    path = folder / "modules.json"
    modules = json.loads(path.read_text())
    kind = modules[1]["type"].replace("Pooling", "Dropout")
    modules.insert(2, {"idx": 2, "name": "2", "path": "2_Dropout", "type": kind})
    path.write_text(json.dumps(modules))
    (folder / "2_Dropout").mkdir()
    (folder / "2_Dropout" / "config.json").write_text('{"dropout": 0.2}')
    assert open_folder(folder).head == head


def test_old_layout_with_the_transformer_in_its_own_folder(folder: Path) -> None:
    inner = folder / "0_Transformer"
    inner.mkdir()
    for name in ("config.json", "model.safetensors", "sentence_bert_config.json"):
        (folder / name).rename(inner / name)
    edit(inner / "sentence_bert_config.json", max_seq_length=17, do_lower_case=True)
    modules = json.loads((folder / "modules.json").read_text())
    modules[0] |= {"path": "0_Transformer", "type": "sentence_transformers.models.Transformer"}
    (folder / "modules.json").write_text(json.dumps(modules))
    model = open_folder(folder)
    assert model.transformer == inner and model.max_seq_length == 17 and model.do_lower_case
    assert core_tensors(model, "fp32")


def test_plain_transformers_folder_gets_mean_pooling(folder: Path) -> None:
    (folder / "modules.json").unlink()
    model = open_folder(folder)
    assert model.pooling == Pooling(("mean",)) and model.head == () and model.dimension == 32


@pytest.mark.parametrize(
    ("changes", "mode"),
    [
        ({"architectures": ["BertForCausalLM"]}, "lasttoken"),
        ({"architectures": ["BertForCausalLM"], "is_causal": False}, "mean"),
        ({"architectures": ["BertModel", "BertForCausalLM"]}, "mean"),
        ({"architectures": []}, "mean"),
    ],
)
def test_plain_folder_of_a_causal_language_model_gets_its_last_token(
    folder: Path, changes: dict[str, Any], mode: str
) -> None:
    edit(folder / "config.json", **changes)
    assert open_folder(folder).pooling == Pooling(("mean",))  # as 1_Pooling says
    (folder / "modules.json").unlink()
    assert open_folder(folder).pooling == Pooling((mode,))


@pytest.mark.parametrize(
    "name", ["tokenizer_config.json", "chat_template.jinja", "additional_chat_templates/default.jinja"]
)
def test_plain_folder_with_a_chat_template(folder: Path, name: str) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    edit(folder / name, chat_template="{{ messages }}")
    assert open_folder(folder).dimension == 24
    (folder / "modules.json").unlink()
    with pytest.raises(ValueError, match=f"{name}: the tokenizer has a chat template"):
        open_folder(folder)


@pytest.mark.parametrize(
    ("name", "activation"),
    [
        ("torch.nn.modules.linear.Identity", "identity"),
        ("torch.nn.modules.activation.Tanh", "tanh"),
        ("torch.nn.modules.activation.GELU", "gelu"),
        ("torch.nn.modules.activation.ReLU", "relu"),
        ("torch.nn.modules.activation.Sigmoid", "sigmoid"),
        ("torch.nn.modules.activation.SiLU", "silu"),
        ("torch.nn.GELU", "gelu"),
        (None, "tanh"),
    ],
)
def test_dense_activations(folder: Path, name: str | None, activation: str) -> None:
    edit(folder / "2_Dense" / "config.json", activation_function=name)
    head = core_head(open_folder(folder))
    assert head[0]["activation"] == activation
    assert head[0]["weight"].shape == (24, 32) and head[0]["bias"].shape == (24,)
    assert head[1] == {"type": "normalize"}


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("config.json", {"model_type": "gpt2"}, "unknown model_type 'gpt2'; expected one of bert"),
        ("config.json", {"model_type": None}, "unknown model_type None"),
        ("config.json", {"model_type": {}}, "unknown model_type {}"),
        ("config.json", {"position_embedding_type": "relative_key"}, "supports only 'absolute'"),
        ("config.json", {"is_decoder": True}, "is_decoder is True"),
        ("config.json", {"hidden_act": "swish"}, "unknown hidden_act 'swish'; expected one of gelu"),
        ("config.json", {"hidden_size": "32"}, "hidden_size must be an integer"),
        ("config.json", {"hidden_size": None}, "hidden_size must be an integer"),
        ("config.json", {"num_hidden_layers": 10**9}, "num_hidden_layers must be an integer from 1 to 1000"),
        ("config.json", {"num_attention_heads": 5}, "hidden_size 32 is not a multiple"),
        ("config.json", {"layer_norm_eps": "x"}, "layer_norm_eps must be a number"),
        (
            "1_Pooling/config.json",
            {"pooling_mode": "median"},
            "unknown pooling_mode 'median'; expected one of",
        ),
        ("1_Pooling/config.json", {"pooling_mode": []}, "must be a name or a list"),
        (
            "1_Pooling/config.json",
            {"embedding_dimension": 33},
            "takes 33 dimensions, the transformer has 32",
        ),
        ("1_Pooling/config.json", {"include_prompt": "no"}, "include_prompt must be true or false"),
        (
            "2_Dense/config.json",
            {"activation_function": "os.system"},
            "unknown activation_function 'os.system'; expected one of",
        ),
        ("2_Dense/config.json", {"in_features": 31}, "in_features is 31, the module before it has 32"),
        ("2_Dense/config.json", {"out_features": 0}, "must be positive integers"),
        ("2_Dense/config.json", {"bias": 1}, "bias must be true or false"),
        ("2_Dense/config.json", {"use_residual": True}, "use_residual is not supported"),
        ("2_Dense/config.json", {"module_input_name": "token_embeddings"}, "runs 'sentence_embedding'"),
        ("3_Normalize/config.json", {"module_output_name": "x"}, "runs 'sentence_embedding'"),
        ("sentence_bert_config.json", {"max_seq_length": 0}, "max_seq_length must be a positive integer"),
        ("config_sentence_transformers.json", {"prompts": ["a"]}, "prompts must be an object of texts"),
        ("config_sentence_transformers.json", {"prompts": {"a": 1}}, "prompts must be an object of texts"),
        (
            "config_sentence_transformers.json",
            {"default_prompt_name": 1},
            "default_prompt_name must be a text",
        ),
        ("config_sentence_transformers.json", {"similarity_fn_name": 1}, "must be a text"),
        (
            "config_sentence_transformers.json",
            {"truncate_dim": -3},
            "truncate_dim must be a positive integer",
        ),
        ("embedkit.json", {"format": 2}, "unknown format 2; this embedkit reads format 1. Upgrade"),
        ("embedkit.json", {"format": 1, "precision": "int3"}, "unknown precision 'int3'"),
        (
            "embedkit.json",
            {"format": 1, "precision": "fp32", "fingerprint": "x"},
            "fingerprint must be a SHA-256",
        ),
    ],
)
def test_wrong_values_are_refused(folder: Path, file: str, changes: dict[str, Any], message: str) -> None:
    edit(folder / file, **changes)
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        open_folder(folder)
    assert str(folder / file) in str(caught.value)


def test_a_similarity_of_other_models_is_none(folder: Path) -> None:
    """Late-interaction models name maxsim; sentence-transformers passes it over, too."""
    edit(folder / "config_sentence_transformers.json", similarity_fn_name="maxsim")
    assert open_folder(folder).similarity_fn_name is None


@pytest.mark.parametrize("content", ["", "{", "[1]", '"text"', "\x00"])
@pytest.mark.parametrize("file", ["config.json", "1_Pooling/config.json", "2_Dense/config.json"])
def test_broken_json_names_the_file(folder: Path, file: str, content: str) -> None:
    (folder / file).write_text(content)
    with pytest.raises(ValueError, match=r"not valid JSON|expected a JSON object") as caught:
        open_folder(folder)
    assert str(folder / file) in str(caught.value)


def test_json_that_is_not_utf8(folder: Path) -> None:
    (folder / "config.json").write_bytes(b'{"model_type": "\xff"}')
    with pytest.raises(ValueError, match="not valid JSON"):
        open_folder(folder)


@pytest.mark.parametrize("path", ["../x", "a/../../x", "/etc", "..\\x", "C:\\x", "a/..", "x\0y"])
def test_module_paths_stay_in_the_folder(folder: Path, path: str) -> None:
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["path"] = path
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ValueError, match="leaves the model folder"):
        open_folder(folder)


@pytest.mark.parametrize(
    ("types", "message"),
    [
        (
            ["models.Transformer", "models.Pooling", "models.LSTM"],
            "expected one of Transformer, StaticEmbedding, Router, Pooling, Dense, Dropout, Normalize",
        ),
        (["models.Pooling", "models.Transformer"], "The modules are Pooling, Transformer"),
        (["models.Transformer"], "The modules are Transformer"),
        (["models.Transformer", "models.Pooling", "models.Pooling"], "The modules are"),
        ([], "The modules are none"),
    ],
)
def test_module_lists(folder: Path, types: list[str], message: str) -> None:
    modules = [{"type": f"sentence_transformers.{name}", "path": ""} for name in types]
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ValueError, match=f"(?i){message}"):
        open_folder(folder)


def test_foreign_module_types_are_refused(folder: Path) -> None:
    (folder / "modules.json").write_text(json.dumps([{"type": "evil.Transformer", "path": ""}]))
    with pytest.raises(ValueError, match=r"unknown module 'evil\.Transformer'"):
        open_folder(folder)
    for value in ({}, [1], [{"type": 3}]):
        (folder / "modules.json").write_text(json.dumps(value))
        with pytest.raises(ValueError, match=r"modules\.json"):
            open_folder(folder)


def test_missing_folders_and_files(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="does not exist; give a folder"):
        open_folder(tmp_path / "nothing")
    (tmp_path / "file").write_text("")
    with pytest.raises(FileNotFoundError, match="is a file, not a model folder"):
        open_folder(tmp_path / "file")
    shutil.rmtree(folder / "1_Pooling")
    with pytest.raises(FileNotFoundError, match=r"1_Pooling.config\.json is missing: .* incomplete"):
        open_folder(folder)
    (folder / "config.json").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"config\.json is missing: .* is not a complete model folder"
    ):
        open_folder(folder)
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"adapter_config\.json: an adapter \(LoRA\), which must be merged"):
        open_folder(folder)


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        ([[1]], "two lists of numbers"),
        ([["a"], [1]], "two lists"),
        ([[0, 1], [1]], "same dim"),
        ([[2], [1]], "same"),
    ],
)
def test_broken_ranges(folder: Path, ranges: Any, message: str) -> None:
    digest = "0" * 64
    hashes = {"fingerprint": digest, "source_weights": digest, "stored_weights": digest}
    edit(folder / "embedkit.json", format=1, precision="fp32", embedding_ranges=ranges, **hashes)
    with pytest.raises(ValueError, match=message):
        open_folder(folder)
