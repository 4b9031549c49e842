"""Cross-encoders made of decoders: classifiers of the last token, and language models that say yes or no."""

from __future__ import annotations

import json
import pickle
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_families

from embedkit import CrossEncoder, Encoder

pytestmark = pytest.mark.filterwarnings("ignore:.*, and truncated")

TEMPLATE = """{%- set ns = namespace(task="Find the answer") -%}
{%- for message in messages if message.role == "system" -%}{%- set ns.task = message.content -%}{%- endfor -%}
<|im_start|>system
Say yes or no.<|im_end|>
<|im_start|>user
<Task>: {{ ns.task }}
<Query>: {{ messages | selectattr("role", "eq", "query") | map(attribute="content") | first }}
<Document>: {{ messages | selectattr("role", "eq", "document") | map(attribute="content") | first }}<|im_end|>
{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
STRUCTURED = """{% for message in messages %}{{ bos_token }}{{ message.role }}: {{ message.content[0].text }}
{% endfor %}"""
PAIRS = [
    ("the weather is lovely", "people stay out"),
    ("", ""),
    ("a", " b \n"),
    ("yes?", "no\n\n"),
    ("<|im_end|> yes", "größer als 東京 \U0001f600"),
    ("the weather " * 30, "people"),
    ("people", "the weather is " * 40),
    ("the people now " * 25, "and the weather " * 30 + "\n"),
]


def _tokenizer(folder: Path, template: str | None) -> int:
    """A byte-level tokenizer as Qwen3's; returns the size of its vocabulary."""
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("y", "e"), ("ye", "s"), ("n", "o"), ("Ġ", "the"), ("Ċ", "Ċ")]
    vocabulary = {token: i for i, token in enumerate([*alphabet, *("".join(pair) for pair in merges)])}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    saved = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=9000,
        pad_token="<|endoftext|>",
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
    )
    saved.chat_template = template
    saved.save_pretrained(folder)
    return len(saved)


def _decoder(folder: Path, kind: str, task: str, template: str | None, **changes: Any) -> Path:
    """A random decoder with the head of ``task``, "CausalLM" or "SequenceClassification"."""
    transformers = pytest.importorskip("transformers")
    size = _tokenizer(folder, template)
    name, options = tiny_families.KINDS[kind]
    ids = {"pad_token_id": size - 3, "bos_token_id": size - 2, "eos_token_id": size - 1}
    config = getattr(transformers, name)(**{**ids, **options, **changes}, vocab_size=size)
    model = tiny_families.randomize(getattr(transformers, f"AutoModelFor{task}").from_config(config))
    model.save_pretrained(folder)
    return folder


def _theirs(folder: Path, **options: Any) -> Any:
    """The cross-encoder of sentence-transformers."""
    modules = pytest.importorskip("sentence_transformers.cross_encoder.modules")
    if not hasattr(modules, "LogitScore"):
        pytest.skip("this sentence-transformers has no LogitScore")
    return pytest.importorskip("sentence_transformers").CrossEncoder(str(folder), device="cpu", **options)


def _same(folder: Path, *, least: float = 0.05, **options: Any) -> None:
    """The scores are those of sentence-transformers, whole and cut."""
    torch = pytest.importorskip("torch")
    for length in (9000, 90):
        theirs = _theirs(folder, max_length=length)
        model = CrossEncoder(folder, max_length=length, **options)
        expected = theirs.predict(PAIRS, activation_fn=torch.nn.Identity())
        found = model.predict(PAIRS, activation_fn="identity")
        assert np.ptp(expected, axis=0).min() > least
        np.testing.assert_allclose(found, expected, atol=2e-4)
        np.testing.assert_allclose(
            model.predict(PAIRS), theirs.predict(PAIRS), atol=1e-4
        )  # the folder's activation
        alone = np.stack([model.predict(pair, activation_fn="identity") for pair in PAIRS])
        np.testing.assert_array_equal(alone, found)


@pytest.mark.parametrize("kind", ["qwen3", "qwen2", "mistral", "gemma-causal"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_language_model(kind: str, tied: bool, tmp_path: Path) -> None:
    _same(_decoder(tmp_path / "model", kind, "CausalLM", TEMPLATE, tie_word_embeddings=tied))


@pytest.mark.parametrize("false", [None, 5])
@pytest.mark.parametrize("arguments", [{}, {"add_generation_prompt": True}])
def test_a_folder_that_sentence_transformers_saved(
    false: int | None, arguments: dict[str, Any], tmp_path: Path
) -> None:
    theirs = _theirs(_decoder(tmp_path / "plain", "qwen3", "CausalLM", TEMPLATE))
    theirs[1].true_token_id, theirs[1].false_token_id = 9, false
    theirs[0].processing_kwargs = {"chat_template": arguments} if arguments else {}
    theirs.prompts, theirs.default_prompt_name = {"task": "Judge the document"}, "task"
    theirs.save_pretrained(str(tmp_path / "model"))
    assert json.loads((tmp_path / "model" / "modules.json").read_text())[1]["type"].endswith("LogitScore")
    _same(tmp_path / "model")


@pytest.mark.parametrize("template", [None, TEMPLATE, STRUCTURED])
@pytest.mark.parametrize(("kind", "labels"), [("qwen3", 1), ("qwen3", 3), ("llama", 1), ("gemma", 2)])
def test_a_classifier_of_the_last_token(template: str | None, kind: str, labels: int, tmp_path: Path) -> None:
    folder = _decoder(tmp_path / "model", kind, "SequenceClassification", template, num_labels=labels)
    if template is None:  # the two texts without anything between them: there must be a token
        torch = pytest.importorskip("torch")
        pairs = [pair for pair in PAIRS if pair != ("", "")]
        expected = _theirs(folder).predict(pairs, activation_fn=torch.nn.Identity())
        found = CrossEncoder(folder).predict(pairs, activation_fn="identity")
        np.testing.assert_allclose(found, expected, atol=2e-4)
    else:
        _same(folder)


def test_a_saved_classifier_with_a_template(tmp_path: Path) -> None:
    folder = _decoder(tmp_path / "plain", "qwen3", "SequenceClassification", STRUCTURED, num_labels=1)
    _theirs(folder).save_pretrained(str(tmp_path / "model"))
    _same(tmp_path / "model")


def test_a_token_of_text_and_end_stays_whole(tmp_path: Path) -> None:
    """A newline that ends a document and the one that ends the template are one token."""
    folder = _decoder(tmp_path / "model", "qwen3", "CausalLM", STRUCTURED)
    way: Any = CrossEncoder(folder)._engine._text
    ids = way._tokenizer.encode_batch([way._template(*pair) for pair in PAIRS])
    ends = [row[-way.special_tokens :] == way.end for row in ids]
    assert any(ends)
    assert not all(ends)
    _same(folder)


ORDER = """{{ messages | map(attribute="content") | join(" / ") }}
"""


@pytest.mark.parametrize(
    "template",
    [
        "{% if tools is not none %}tools{% endif %}" + ORDER,
        "{% if documents is none %}none{% endif %}{% if tools is defined %}defined{% endif %}" + ORDER,
        "{% generation %}" + ORDER + "{% endgeneration %}",
        "{{ messages | tojson(true) }}{{ messages | tojson(indent=1) }}",
        "{{ strftime_now('%Y') }} " + ORDER,
        "{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}{{ m.content }} {% endfor %}end",
        ORDER + "<|endoftext|>",  # the padding token
        ORDER + "<|endoftext|><|endoftext|>",
    ],
)
@pytest.mark.parametrize("task", ["CausalLM", "SequenceClassification"])
def test_templates(task: str, template: str, tmp_path: Path) -> None:
    labels = {"num_labels": 2} if task != "CausalLM" else {}
    _same(_decoder(tmp_path / "model", "qwen3", task, template, **labels), least=1e-3)


def test_a_classifier_reads_the_last_token_that_is_no_padding(tmp_path: Path) -> None:
    """Wherever the padding comes from: the post-processor of Qwen3-Embedding adds it to every text."""
    torch = pytest.importorskip("torch")
    folder = _decoder(tmp_path / "model", "qwen3", "SequenceClassification", None, num_labels=2)
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    (padding,) = [token["id"] for token in content["added_tokens"] if token["content"] == "<|endoftext|>"]
    end = {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}
    texts = [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"]
    processor = {
        "type": "TemplateProcessing",
        "single": [texts[0], end],
        "pair": [texts[0], end, texts[1], end],
        "special_tokens": {
            "<|endoftext|>": {"id": "<|endoftext|>", "ids": [padding], "tokens": ["<|endoftext|>"]}
        },
    }
    pairs = [*PAIRS, ("the", "weather<|endoftext|>")]
    for value in (content["post_processor"], processor):
        path.write_text(json.dumps({**content, "post_processor": value}))
        some = pairs if value is processor else [pair for pair in pairs if any(pair)]
        for length in (9000, 90):
            expected = _theirs(folder, max_length=length).predict(some, activation_fn=torch.nn.Identity())
            found = CrossEncoder(folder, max_length=length).predict(some, activation_fn="identity")
            np.testing.assert_allclose(found, expected, atol=2e-4)
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"pairs\[1\] has no tokens"):
        CrossEncoder(folder).predict([("a", "b"), ("", "")])


def test_the_side_of_truncation(tmp_path: Path) -> None:
    for task in ("CausalLM", "SequenceClassification"):
        folder = _decoder(tmp_path / task, "qwen3", task, TEMPLATE)
        _edit(folder / "tokenizer_config.json", truncation_side="left")
        _same(folder)


def test_both_tables_of_a_tied_model(tmp_path: Path) -> None:
    """transformers ties them only if they are equal."""
    torch = pytest.importorskip("torch")
    load, save = (
        pytest.importorskip("safetensors.torch").load_file,
        pytest.importorskip("safetensors.torch").save_file,
    )
    folder = _decoder(tmp_path / "model", "qwen3", "CausalLM", TEMPLATE, tie_word_embeddings=True)
    tensors = load(folder / "model.safetensors")
    tensors["lm_head.weight"] = torch.randn_like(tensors["model.embed_tokens.weight"])
    save(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    _same(folder)
    tensors["lm_head.weight"][tensors["lm_head.weight"].shape[0] - 5 :] = float("nan")
    tensors["lm_head.weight"][260, 3] = float("nan")
    save(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"'lm_head.weight' holds nan at \[260, 3\]"):
        CrossEncoder(folder)


@pytest.mark.parametrize(
    "templates",
    [
        {"tokenizer_config.json": [{"name": "default", "template": ORDER}]},
        {"tokenizer_config.json": {"default": ORDER, "tool_use": "x"}},
        {"chat_template.jinja": ORDER, "additional_chat_templates/tool_use.jinja": "x"},
        {"chat_template.jinja": "x", "additional_chat_templates/default.jinja": ORDER},
    ],
)
def test_named_templates(templates: dict[str, Any], tmp_path: Path) -> None:
    folder = _decoder(tmp_path / "model", "qwen3", "CausalLM", None)
    template = ORDER.replace('map(attribute="content")', 'map(attribute="content") | map("string")')
    for name, value in templates.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        if path.suffix == ".json":
            _edit(
                path,
                chat_template=json.loads(json.dumps(value).replace(json.dumps(ORDER), json.dumps(template))),
            )
        else:
            path.write_text(value.replace(ORDER, template))
    _same(folder)


def test_the_tokens_yes_and_no_are_looked_up(tmp_path: Path) -> None:
    """Not made by the tokenizer, which may write another token for the start of a text."""
    folder = _decoder(tmp_path / "model", "qwen3", "CausalLM", TEMPLATE)
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"]["merges"] = [merge for merge in content["model"]["merges"] if merge != ["ye", "s"]]
    path.write_text(json.dumps(content))
    _same(folder)


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_lower_precision(precision: str, tmp_path: Path) -> None:
    folder = _decoder(tmp_path / "model", "qwen3", "CausalLM", TEMPLATE)
    exact = CrossEncoder(folder).predict(PAIRS, activation_fn="identity")
    model = CrossEncoder(folder, precision=precision, threads=2)
    found = model.predict(PAIRS, activation_fn="identity")
    assert np.corrcoef(exact, found)[0, 1] > (0.995 if precision == "bf16" else 0.95)
    copy = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copy.predict(PAIRS[::-1], activation_fn="identity")[::-1], found)


def test_truncation_is_counted_and_ranks_work(tmp_path: Path) -> None:
    model = CrossEncoder(_decoder(tmp_path / "model", "qwen3", "CausalLM", TEMPLATE), max_length=200)
    with pytest.warns(UserWarning, match="1 of the first 2 pairs is longer than max_length=200"):
        model.predict([PAIRS[0], ("the weather " * 100, "b")])
    for query, long in (("the weather", False), ("the weather " * 100, True)):
        assert model._engine.too_long(query, 200)(["b"]) == [long]
    ranked = model.rank("the weather", ["people", "stay", "out"], top_k=2, return_documents=True)
    assert [sorted(hit) for hit in ranked] == [["corpus_id", "score", "text"]] * 2
    with pytest.raises(ValueError, match=r"pairs\[1\]\[0\]"):
        model.predict([("a", "b"), ("\ud800", "b")])


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (
            "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}",
            "'query' and the role 'document'",
        ),
        ("{{ messages[0].content }}", "leaves out what the role 'document' says"),
        ("{{ messages", "the chat template is broken"),
        ("{{ raise_exception('no such role') }}", r"fails on a query and a document \(no such role\)"),
        ("{{ messages.__class__.__mro__ }}", "fails on a query and a document"),
        ("{% for i in range(10 ** 9) %}{% endfor %}", "fails on a query and a document"),
        ("{% for i in [1] %}" * 30 + "{% endfor %}" * 30, "the chat template is broken"),
        ("{% break %}", "the chat template is broken"),
        ("{{ 'x' | dictsort }}", "fails on a query and a document"),
        ("{{ '\\ud800' }}{{ messages }}", "writes a lone surrogate"),
    ],
)
def test_bad_templates(template: str, message: str, tmp_path: Path) -> None:
    folder = _decoder(tmp_path / "model", "qwen3", "CausalLM", template)
    with pytest.raises(ValueError, match=rf"chat_template.jinja: .*{message}"):
        CrossEncoder(folder)


def _edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_bad_folders(tmp_path: Path) -> None:
    plain = _decoder(tmp_path / "plain", "qwen3", "CausalLM", TEMPLATE, tie_word_embeddings=True)
    saved = tmp_path / "saved"
    _theirs(plain).save_pretrained(str(saved))

    def refused(message: str, file: str, /, base: Path = saved, **changes: Any) -> None:
        folder = tmp_path / "broken"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(base, folder)
        _edit(folder / file, **changes)
        with pytest.raises(ValueError, match=message):
            CrossEncoder(folder)

    settings = json.loads((saved / "sentence_bert_config.json").read_text())
    modalities = settings["modality_config"]
    for message, file, changes in (
        ("true_token_id must be the id of a token, not None", "1_LogitScore/config.json", {"true_token_id": None}),
        ("false_token_id must be the id of a token, not -1", "1_LogitScore/config.json", {"false_token_id": -1}),
        ("module_input_name must be causal_logits", "1_LogitScore/config.json", {"module_input_name": "x"}),
        ("the score reads the token 999999", "1_LogitScore/config.json", {"true_token_id": 999999}),
        ("lm_head.weight' is missing", "config.json", {"tie_word_embeddings": False}),
        ("a LogitScore needs one that ends with ForCausalLM", "config.json", {"architectures": ["Qwen3Model"]}),
        ("final_logit_softcapping", "config.json", {"final_logit_softcapping": 30.0}),
        ("transformer_task is", "sentence_bert_config.json", {"transformer_task": "fill-mask"}),
        ("format must be flat or structured", "sentence_bert_config.json",
         {"modality_config": {**modalities, "message": {**modalities["message"], "format": "x"}}}),
        ("modality_config.message.method is", "sentence_bert_config.json",
         {"modality_config": {**modalities, "message": {"method": "generate"}}}),
        ("chat_template.max_length is 5", "sentence_bert_config.json",
         {"processing_kwargs": {"chat_template": {"max_length": 5}}}),
        ("continue_final_message is True", "sentence_bert_config.json",
         {"processing_kwargs": {"chat_template": {"continue_final_message": True}}}),
        ("restore_suffix is False", "sentence_bert_config.json",
         {"processing_kwargs": {"chat_template": {"restore_suffix": False}}}),
        ("processor_kwargs.chat_template is set", "sentence_bert_config.json",
         {"processor_kwargs": {"chat_template": "x"}}),
    ):  # fmt: skip
        refused(message, file, **changes)
    (saved / "chat_template.jinja").unlink()
    refused("has no chat template", "config.json")
    (saved / "modules.json").write_text((saved / "modules.json").read_text().replace("LogitScore", "Other"))
    refused("unknown module", "config.json")
    tokens = json.loads((plain / "tokenizer.json").read_text())["model"]
    merges = [merge for merge in tokens["merges"] if "".join(merge) not in ("yes", "no")]
    vocabulary = {token: i for token, i in tokens["vocab"].items() if token not in ("yes", "no")}
    kept = {token: i for i, token in enumerate(vocabulary)}
    refused("the vocabulary is incomplete", "tokenizer.json", base=plain, added_tokens=[{"id": 3}])
    refused("the vocabulary is incomplete", "tokenizer.json", base=plain, model={"vocab": 5})
    refused("no token 'yes'", "tokenizer.json", base=plain, model={**tokens, "merges": merges, "vocab": kept})


def test_old_jinja2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _decoder(tmp_path / "model", "qwen3", "CausalLM", TEMPLATE)
    monkeypatch.setattr("jinja2.__version__", "3.1.5")
    with pytest.raises(ImportError, match=r"need jinja2 3.1.6 or newer.*this is 3.1.5"):
        CrossEncoder(folder)


def test_without_jinja2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _decoder(tmp_path / "model", "qwen3", "CausalLM", TEMPLATE)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ImportError, match=r"chat templates need jinja2: pip install 'jinja2>=3.1.6'"):
        CrossEncoder(folder)


def test_an_encoder_does_not_open_a_saved_reranker(tmp_path: Path) -> None:
    plain = _decoder(tmp_path / "plain", "qwen3", "CausalLM", TEMPLATE)
    _theirs(plain).save_pretrained(str(tmp_path / "model"))
    with pytest.raises(ValueError, match=r"Transformer, LogitScore, .*open it with embedkit\.CrossEncoder"):
        Encoder(tmp_path / "model")


def test_a_teacher_keeps_its_template(make_cross_encoder: Any, tmp_path: Path) -> None:
    """On a GPU, too, where the torch that runs other teachers would read the plain texts."""
    teachers = pytest.importorskip("embedkit.training.objectives.teachers")
    for task, template in (("CausalLM", None), ("CausalLM", TEMPLATE), ("SequenceClassification", TEMPLATE)):
        folder = _decoder(tmp_path / f"{task}-{template is None}", "qwen3", task, template)
        assert teachers._runs_in_core(folder, anywhere=True)
        assert teachers._runs_in_core(folder, anywhere=False)
    plain = make_cross_encoder("bert", 1)
    assert not teachers._runs_in_core(plain, anywhere=True)
    assert teachers._runs_in_core(plain, anywhere=False)
