"""Small random models on disk, written by transformers and sentence-transformers themselves, for all tests."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_encoder import FakeEncoder

# A shell that starts the tests in the background makes them, and every process they start, ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Torch's threads in one worker of xdist wait for those in the other: one each (tests/python/training: 107 s, not 312).
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

_WORDS = """
the a of and to in is it that for was on are as with his they at be this from have or by one had not but
what all were when we there can an your which their said if do will each about how up out them then she
many some so these would other into has more her two like him see time could no make than first been its
who now people my made over did down only way find use may water long little very after words called
just where most know straße naïve café über weather lovely today sunny stadium query document passage
instruction night day 東 京 привет мир γειά κόσμε . , ! ? : ; - ' " ( )
""".split()  # noqa: SIM905
_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def _vocabulary() -> list[str]:
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    pieces = [
        *_WORDS,
        *letters,
        *("##" + letter for letter in letters),
        "##ing",
        "##ed",
        "##s",
        "##er",
        "##tion",
    ]
    return [*_SPECIAL, *dict.fromkeys(pieces)]


@pytest.fixture(autouse=True, scope="session")
def _away_from_the_repository(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """`python -c` imports from the working directory first: at the root it would find sources without the core."""
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("cwd"))
    yield
    os.chdir(before)


def tiny_model(
    path: Path,
    *,
    hidden: int = 32,
    layers: int = 2,
    heads: int = 4,
    intermediate: int = 64,
    pooling: str | Sequence[str] = "mean",
    include_prompt: bool = True,
    dense: Sequence[tuple[int, str, bool]] = (),
    normalize: bool = False,
    hidden_act: str = "gelu",
    max_positions: int = 64,
    max_seq_length: int | None = None,
    prompts: dict[str, str] | None = None,
    default_prompt_name: str | None = None,
    similarity_fn_name: str | None = None,
    truncate_dim: int | None = None,
    dtype: str = "float32",
    seed: int = 0,
) -> Path:
    """Write a random BERT sentence encoder to the new folder ``path`` and return it.

    Args:
        pooling: a mode of sentence-transformers' Pooling or several to concatenate.
        dense: (out_features, class in torch.nn such as "Tanh", bias) of each Dense module.
        normalize: end with Normalize.
        dtype: of the stored weights: "float32", "float16" or "bfloat16".

    The weights are larger than those of a fresh BERT, so that every part of the network affects the vectors.
    """
    torch = pytest.importorskip("torch")
    models = pytest.importorskip("sentence_transformers.models")
    transformers = pytest.importorskip("transformers")
    from sentence_transformers import SentenceTransformer
    from tokenizers.implementations import BertWordPieceTokenizer

    torch.manual_seed(seed)
    vocabulary = _vocabulary()
    config = transformers.BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=intermediate,
        hidden_act=hidden_act,
        max_position_embeddings=max_positions,
    )
    bert = transformers.BertModel(config).eval()
    with torch.no_grad():
        for name, parameter in bert.named_parameters():
            spread = 0.3 if parameter.ndim == 1 else 2 / parameter.shape[-1] ** 0.5
            parameter.normal_(1.0 if "LayerNorm.weight" in name else 0.0, spread)
    raw = path / "raw"
    raw.mkdir(parents=True)
    wordpiece = BertWordPieceTokenizer({word: i for i, word in enumerate(vocabulary)})
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=wordpiece._tokenizer,
        model_max_length=512,
        unk_token="[UNK]",
        sep_token="[SEP]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        mask_token="[MASK]",
    )
    bert.save_pretrained(raw)
    tokenizer.save_pretrained(raw)
    transformer = models.Transformer(str(raw), max_seq_length=max_seq_length)
    modes = pooling if isinstance(pooling, str) else tuple(pooling)
    modules: list[Any] = [
        transformer,
        models.Pooling(hidden, pooling_mode=modes, include_prompt=include_prompt),
    ]
    width = hidden * (1 if isinstance(pooling, str) else len(pooling))
    for out, activation, bias in dense:
        modules.append(
            models.Dense(width, out, bias=bias, activation_function=getattr(torch.nn, activation)())
        )
        width = out
    if normalize:
        modules.append(models.Normalize())
    model = SentenceTransformer(
        modules=modules,
        device="cpu",
        prompts=prompts,
        default_prompt_name=default_prompt_name,
        similarity_fn_name=similarity_fn_name,
        truncate_dim=truncate_dim,
    )
    model.to(getattr(torch, dtype))
    folder = path / "model"
    model.save_pretrained(str(folder), create_model_card=False)
    return folder


@pytest.fixture
def encoder() -> FakeEncoder:
    """A `FakeEncoder` of the default dimension."""
    return FakeEncoder()


def _changed(folder: Path) -> dict[Path, int]:
    """When each file of a folder was changed."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


@pytest.fixture(scope="session")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`tiny_model` in its own folder, written once per session for the same arguments; tests change copies of it."""
    known: dict[str, tuple[Path, dict[Path, int]]] = {}

    def make(**options: Any) -> Path:
        key = repr(sorted(options.items()))
        if key not in known:
            folder = tiny_model(tmp_path_factory.mktemp("model"), **options)
            known[key] = folder, _changed(folder)
        folder, changed = known[key]
        assert _changed(folder) == changed, f"an earlier test wrote into {folder}, which tests share"
        return folder

    return make


@pytest.fixture(scope="session")
def reference() -> Callable[[Path], Any]:
    """The same folder in sentence-transformers, in float32 on the CPU; loaded once per session."""
    transformer = pytest.importorskip("sentence_transformers").SentenceTransformer
    known: dict[Path, Any] = {}

    def load(folder: Path) -> Any:
        if folder not in known:
            known[folder] = transformer(str(folder), device="cpu", local_files_only=True).float()
        return known[folder]

    return load


@pytest.fixture(scope="session")
def texts() -> list[str]:
    """300 different texts of 0 to about 50 tokens, several scripts; some longer than a tiny model takes."""
    choose = random.Random(0)
    pool = [*_WORDS, "unknownword", "Encoding", "İstanbul", "😀", "x" * 120, "CAPITALS", "don't", "e\u0301"]
    result = ["", " ", "a", "The weather is lovely today.", "\n\t", "[SEP] inside [MASK]"]
    for _ in range(294):
        result.append(" ".join(choose.choice(pool) for _ in range(choose.choice([1, 3, 8, 15, 40]))))
    return result


@pytest.fixture(scope="session")
def real_model() -> Path:
    """The folder of all-MiniLM-L6-v2 that ``EMBEDKIT_TEST_MODEL`` names."""
    folder = os.environ.get("EMBEDKIT_TEST_MODEL")
    if not folder:
        pytest.skip("EMBEDKIT_TEST_MODEL does not name the folder of all-MiniLM-L6-v2")
    return Path(folder)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The data folder that ``EMBEDKIT_DATA`` names, by default ``../shared/data`` of the repository."""
    default = Path(__file__).parents[3] / "shared" / "data"
    folder = Path(os.environ.get("EMBEDKIT_DATA", default))
    if not folder.is_dir():
        pytest.skip("no folder of evaluation data: EMBEDKIT_DATA does not name one")
    return folder
