"""Types of the compiled core, for checkers and editors; embedkit.Encoder is the public interface."""

from typing import Any, Final, TypedDict

import numpy as np
import numpy.typing as npt
from typing_extensions import NotRequired

def active_isa() -> str:
    """The instruction set that an `Encoder` made now runs on, e.g. "avx2"; one of `available_isas`.

    ``EMBEDKIT_ISA``, which is read by each call, forces one.

    Raises:
        ValueError: EMBEDKIT_ISA names one that is unknown or that this machine lacks.
    """

def available_isas() -> list[str]:
    """The instruction sets that this machine can run, slowest first.

    Of "reference" (everywhere), "amx_emulated" (the kernels of "amx" without its instructions, for tests), "avx2",
    "avx2_vnni" (256-bit vpdpbusd, of AVX-VNNI or of AVX-512 VNNI), "avx512_vnni", "amx" and "neon" (with the dot
    product of Armv8.2).
    """

def default_threads() -> int:
    """How many threads the CPU affinity and the cgroup quota of this process allow."""

def release_freed_memory() -> None:
    """Give freed memory back to the system, where the C library can be told to (glibc)."""

def hold_sqlite_over_forks(alloc: int, try_enter: int, leave: int) -> None:
    """Have forks wait for other threads in SQLite, whose functions ``sqlite3_mutex_…`` are at these addresses."""

def measure_peak(precision: str, seconds: float = 0.2, isa: str = "") -> float:
    """GOP/s that one thread reaches on registers alone: the ceiling of the kernels for "fp32", "bf16" or
    "int8".

    ``isa`` is one of `available_isas`, by default `active_isa`.
    """

def measure_kernel(
    operation: str, rows: int, columns: int, out_features: int = 0, isa: str = "", seconds: float = 0.2
) -> float:
    """Seconds of the fastest call of one kernel on one thread, its operands in the cache.

    Args:
        operation: "linear_int8", "linear_bf16", "linear_fp32" (rows, columns) to (rows, out_features); "attention", a
            sequence of ``rows`` tokens and a head of ``columns`` values; "rotate", "quantize", "gelu" and
            "layer_norm" (both with their quantized result) on (rows, columns); "copy", of as many floats.
        isa: one of `available_isas`, by default `active_isa`.
        seconds: how long to repeat.
    """

class AddedToken:
    """A token that is matched in the text before the model sees it; frozen.

    Args:
        content: the token.
        id: its id.
        single_word: match whole words only.
        lstrip, rstrip: swallow the white space before or after it.
        normalized: match in the normalized text.
    """

    content: Final[str]
    id: Final[int]
    single_word: Final[bool]
    lstrip: Final[bool]
    rstrip: Final[bool]
    normalized: Final[bool]
    def __init__(
        self, *, content: str, id: int, single_word: bool, lstrip: bool, rstrip: bool, normalized: bool
    ) -> None: ...
    def replace(self, **changes: Any) -> AddedToken:
        """A copy with other values."""

class Tokenizer:
    """Text in, token ids out; thread-safe."""

    vocab_size: int
    def encode(self, text: str) -> list[int]:
        """Content ids of one text: no special tokens, no truncation."""

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """`encode` of every text, with the GIL released."""

class WordPiece(Tokenizer):
    """BERT normalization and WordPiece."""

    def __init__(
        self,
        vocab: list[str],
        added_tokens: list[AddedToken],
        *,
        clean_text: bool,
        handle_chinese_chars: bool,
        strip_accents: bool | None,
        lowercase: bool,
        unknown_token: str,
        continuing_prefix: str,
        max_chars_per_word: int,
    ) -> None: ...

class NormalizerStep:
    """A normalizer of `tokenizers`; frozen.

    Args:
        kind: "nfc", "nfd", "nfkc", "nfkd", "lowercase", "strip_accents", "nmt", "replace" (every ``pattern`` by
            ``content``), "replace_runs" (" {2,}" by ``content``), "replace_breaks" (r"\\s{2,}|[\\n\\r\\t]" by it),
            "prepend" (``content``), "strip" (``left``, ``right``) or "charsmap" (``content``: its bytes).
        pattern, content: text; ``content`` may be bytes.
        left, right: the sides that are stripped.
    """

    def __init__(
        self,
        *,
        kind: str,
        pattern: str = "",
        content: str | bytes = "",
        left: bool = False,
        right: bool = False,
    ) -> None: ...

class SplitStep:
    """A pre-tokenizer of `tokenizers`; frozen.

    Args:
        kind: "pattern", "string" (at each ``text``), "whitespace", "digits", "punctuation", "metaspace" (``text``
            replaces spaces) or "prefix_space".
        pattern: a known regular expression: "gpt2", "cl100k", "qwen2" or "qwen3_5".
        text: the delimiter.
        behavior: what becomes of delimiters: "removed", "isolated", "merged_with_previous", "merged_with_next" or
            "contiguous".
        scheme: of "metaspace": prepend ``text`` "always", to the "first" piece or "never".
        split: of "metaspace": cut before each ``text``.
    """

    def __init__(
        self,
        *,
        kind: str,
        pattern: str = "gpt2",
        text: str = "",
        behavior: str = "isolated",
        scheme: str = "never",
        split: bool = True,
    ) -> None: ...

class SubwordModel:
    """BPE or Unigram: ids of one word."""

    @staticmethod
    def bpe(
        vocab: list[str],
        ids: list[int],
        lefts: list[str],
        rights: list[str],
        *,
        unknown_token: str | None,
        byte_level: bool,
        byte_fallback: bool,
        fuse_unknown: bool,
        ignore_merges: bool,
    ) -> SubwordModel:
        """Byte pair encoding; ``lefts`` and ``rights`` are the merges, the first one first."""

    @staticmethod
    def unigram(
        vocab: list[str], scores: list[float], *, unknown_id: int, byte_fallback: bool
    ) -> SubwordModel:
        """SentencePiece's unigram language model."""

class Subword(Tokenizer):
    """Normalizers, pre-tokenizers and a model of words."""

    def __init__(
        self,
        model: SubwordModel,
        added_tokens: list[AddedToken],
        normalizer: list[NormalizerStep],
        splits: list[SplitStep],
        *,
        vocab_size: int,
    ) -> None: ...

class PairTemplate:
    """What stands between the two texts of a pair, and the token types.

    Attributes:
        between_ids: ids between the texts; ``prefix_ids`` and ``suffix_ids`` of the call go around both.
        typed: whether the model is given the types; else all are 0.
        prefix_types, between_types, suffix_types: one for each of these ids.
        first_type, second_type: of the texts' own tokens.
    """

    between_ids: Final[list[int]]
    typed: Final[bool]
    prefix_types: Final[list[int]]
    between_types: Final[list[int]]
    suffix_types: Final[list[int]]
    first_type: Final[int]
    second_type: Final[int]
    def __init__(
        self,
        *,
        between_ids: list[int],
        typed: bool,
        prefix_types: list[int],
        between_types: list[int],
        suffix_types: list[int],
        first_type: int,
        second_type: int,
    ) -> None: ...
    def replace(self, **changes: Any) -> PairTemplate:
        """A copy with other values."""

class EncodeOptions:
    """The options of a call; frozen.

    Attributes:
        threads: at least 1.
        prefix_ids, suffix_ids: special tokens around each text.
        max_length: tokens of a sequence, special tokens counted.
        overflow: what happens to a longer text: "truncate", "error" or "window" (several sequences).
        truncation_side: "right", or "left" to keep the end of the text.
        pool_skip: leading tokens that the pooling leaves out.
        first_text: index of the first text in the caller's input, for messages.
        unknown_id: the token that stands for words that the model does not know; -1 for none.
        pair: set for pairs of texts.
        batch_size: most texts of a batch; 0 for no cap.
        truncate_dim: dimensions kept; 0 for all.
        normalize: scale the vectors to length 1.
        token_embeddings: return the last hidden states instead of vectors.
        profile: fill ``Stats["stages"]``.

    Raises:
        TypeError: an option is unknown, missing or of the wrong type.
        ValueError: a value is out of range, or two of them contradict each other.
    """

    threads: Final[int]
    prefix_ids: Final[list[int]]
    suffix_ids: Final[list[int]]
    max_length: Final[int]
    overflow: Final[str]
    truncation_side: Final[str]
    pool_skip: Final[int]
    first_text: Final[int]
    unknown_id: Final[int]
    pair: Final[PairTemplate | None]
    batch_size: Final[int]
    truncate_dim: Final[int]
    normalize: Final[bool]
    token_embeddings: Final[bool]
    profile: Final[bool]
    def __init__(
        self,
        *,
        threads: int,
        prefix_ids: list[int],
        suffix_ids: list[int],
        max_length: int,
        overflow: str = "truncate",
        truncation_side: str = "right",
        pool_skip: int = 0,
        first_text: int = 0,
        unknown_id: int = -1,
        pair: PairTemplate | None = None,
        batch_size: int = 0,
        truncate_dim: int = 0,
        normalize: bool = False,
        token_embeddings: bool = False,
        profile: bool = False,
    ) -> None: ...
    def replace(self, **changes: Any) -> EncodeOptions:
        """A copy with other values."""

class EncoderConfig:
    """The shape of an encoder; names and meaning as in a BERT's config.json.

    ``padding_idx``: the token that takes no position, in models that count as fairseq does; -1 for none.
    ``relative_attention_num_buckets``: of MPNet's and T5's position bias; 0 for none. ``rotary``: positions rotate
    query and key (``rotary_value``: and the value). ``embedding_size``: of embeddings that are projected to
    ``hidden_size``; 0 or ``hidden_size`` where they are not. The others are explained in csrc/encoder/config.h;
    ``norm_place`` is "post", "pre" or "around", ``norm_kind`` "layer", "rms" or "rms_plus_one", ``gate`` "none" or the
    half that is activated, "first" or "second".

    Raises:
        TypeError: an option is unknown, missing or of the wrong type.
        ValueError: no kernel can run this shape.
    """

    hidden_size: Final[int]
    num_hidden_layers: Final[int]
    num_attention_heads: Final[int]
    intermediate_size: Final[int]
    vocab_size: Final[int]
    max_position_embeddings: Final[int]
    type_vocab_size: Final[int]
    task_type_vocab_size: Final[int]
    padding_idx: Final[int]
    relative_attention_num_buckets: Final[int]
    position_table: Final[bool]
    score_terms: Final[int]
    position_buckets: Final[int]
    max_relative_positions: Final[int]
    rotary: Final[bool]
    rotary_value: Final[bool]
    embedding_size: Final[int]
    head_size: Final[int]
    num_key_value_heads: Final[int]
    rotary_base: Final[float]
    rotary_local_base: Final[float]
    rotary_divisor: Final[float]
    rotary_short_wave: Final[float]
    rotary_long_wave: Final[float]
    rotary_stretch: Final[float]
    rotary_trained: Final[int]
    alibi: Final[bool]
    causal: Final[bool]
    window: Final[int]
    local_layers: Final[str]
    num_hidden_groups: Final[int]
    norm_place: Final[str]
    norm_kind: Final[str]
    embedding_norm: Final[bool]
    query_key_norm: Final[bool]
    gate: Final[str]
    biases: Final[bool]
    embedding_scale: Final[float]
    layer_norm_eps: Final[float]
    hidden_act: Final[str]
    def __init__(self, **values: Any) -> None: ...
    def replace(self, **changes: Any) -> EncoderConfig:
        """A copy with other values."""

class HeadModule:
    """A module after the pooling: y = activation(x Wᵀ + b) ("dense"), y = x / |x| ("normalize") or a norm without bias.

    Args:
        type: "dense", "normalize" or "layer_norm".
        weight: (out, in) float32, of a dense module; (features) of a norm.
        bias: (out,) float32, or None.
        activation: "identity", "gelu", "gelu_new", "relu", "tanh", "sigmoid" or "silu".
    """

    type: Final[str]
    activation: Final[str]
    def __init__(
        self,
        *,
        type: str,
        weight: npt.NDArray[np.float32] | None = None,
        bias: npt.NDArray[np.float32] | None = None,
        activation: str = "identity",
    ) -> None: ...
    def replace(self, **changes: Any) -> HeadModule:
        """A copy with other values."""

class Stats(TypedDict):
    """What a call of `Encoder.encode` counted.

    ``stages`` is there if the options ask for ``"profile"``: seconds by stage, summed over the threads.
    """

    tokens: int
    truncated: int
    unknown: int
    stages: NotRequired[dict[str, float]]

class Cancel:
    """Stops a `tokenize_window` that runs on another thread."""

    def __init__(self) -> None: ...
    def cancel(self) -> None:
        """Let it raise RuntimeError within some milliseconds."""

class TokenWindow:
    """The sequences of token ids of some texts: cut to length, special tokens included.

    Attributes:
        texts: how many texts.
        tokens: of all sequences together.
        truncated: texts that lost tokens.
        unknown: texts of more than a third ``unknown_id``.
        lengths: (sequences,) tokens of each, in the order of the texts.
        text_of_sequence: (sequences,); with overflow "window" a text may have several, one after another.
        pool_skip: (sequences,) leading tokens that the pooling leaves out.

    The three arrays are read-only.
    """

    texts: int
    tokens: int
    truncated: int
    unknown: int
    lengths: npt.NDArray[np.int32]
    text_of_sequence: npt.NDArray[np.int32]
    pool_skip: npt.NDArray[np.int32]
    def pack(
        self,
        order: npt.NDArray[np.int64],
        ids: npt.NDArray[np.int32],
        cu_seqlens: npt.NDArray[np.int32],
        positions: npt.NDArray[np.int32] | None = None,
        tiles: npt.NDArray[np.int32] | None = None,
        *,
        skips: bool = False,
        padding_idx: int = -1,
        vocab_size: int,
    ) -> int:
        """Lay the sequences that ``order`` names end to end in memory of the caller, without the GIL.

        Args:
            order: (n,) rows of `lengths`.
            ids: filled up with 0.
            cu_seqlens: (n + 1 or more,) prefix sums of the lengths, filled up with empty sequences.
            positions: as long as ``ids``: rows of the position table, filled up with 0.
            tiles: (tiles, 4 + block), as `embedkit.kernels.attention_tiles` makes them.
            skips: give ``cu_seqlens`` two entries a sequence after the first: where its pooled tokens begin, and
                its end; it is then (2 n + 1 or more, odd).
            padding_idx: the token that takes no position, in models that count as fairseq does; else -1.
            vocab_size: ids are below it.

        Returns:
            The number of tokens.

        Raises:
            ValueError: the batch does not fit, or an id is outside the vocabulary.
        """

def tokenize_window(
    texts: list[str], tokenizer: Tokenizer, options: EncodeOptions, cancel: Cancel | None = None
) -> TokenWindow:
    """Tokenize on the core's threads, without the GIL; ``options`` are those of `Encoder.encode`.

    Without ``cancel`` a Ctrl-C is heard.
    """

def tokenize_window_ids(
    ids: list[list[int]], options: EncodeOptions, cancel: Cancel | None = None
) -> TokenWindow:
    """`tokenize_window` for content ids that another tokenizer made."""

def scatter_rows(
    out: npt.NDArray[Any], rows: npt.NDArray[np.int64], values: npt.NDArray[Any], threads: int
) -> None:
    """``out[rows] = values`` for distinct ``rows``, without the GIL.

    Raises:
        ValueError: the arrays do not fit together, or ``out`` does not have a row.
    """

def encode_postings(
    instances: npt.NDArray[np.int64], counts: npt.NDArray[np.int64], after: int = -1
) -> list[bytes]:
    """The posting lists of words (``csrc/words/postings.h``).

    Args:
        instances: for each word in turn, for each time it is there: 2 row in a title, 2 row + 1 in a text, ascending.
        counts: the instances of each word.
        after: the first list goes on after this row.

    Raises:
        ValueError: the counts do not add up to the instances, or these do not ascend.
    """

def merge_postings(lists: list[bytes], rows: int) -> tuple[bytes, int]:
    """The posting list of several words together, and the number of its rows.

    Raises:
        ValueError: a list is damaged, or has a row of ``rows`` or more.
    """

def bm25(
    lists: list[bytes],
    weights: list[float],
    lengths: npt.NDArray[np.uint32],
    average_length: float,
    title_weight: float,
    limit: int,
    allowed: npt.NDArray[np.uint8] | None,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Rows and scores of the best by BM25, best first, ties by row; without the GIL.

    Args:
        lists: the posting list of each word of a query.
        weights: of each word, above 0.
        lengths: words of each row.
        average_length: of all rows, above 0.
        title_weight: of a word in a title, where one in a text counts 1.
        limit: most rows.
        allowed: a bit for each row, lowest first; ``None``: all.

    Raises:
        ValueError: a list is damaged, or the arguments do not fit.
    """

class Encoder:
    """Tokenize, run the transformer, pool, apply the head."""

    dimension: int
    memory_bytes: int
    @property
    def isa(self) -> str:
        """The instruction set that it runs on, chosen when it was made; one of `available_isas`."""

    @property
    def products(self) -> str:
        """The instruction that multiplies: "tdpbf16ps", "vpdpbusd", …; "fma" in fp32, "widened" for bf16 by "fma"."""

    def __init__(
        self,
        config: EncoderConfig,
        tensors: dict[str, npt.NDArray[Any]],
        pooling: list[str],
        head: list[HeadModule],
        precision: str,
    ) -> None: ...
    def encode(self, texts: list[str], tokenizer: Tokenizer, options: EncodeOptions) -> tuple[Any, Stats]:
        """Vectors (n, dimension) or, with ``options.token_embeddings``, a list of (tokens, hidden_size)."""

    def encode_pairs(
        self, first: list[str], second: list[str], tokenizer: Tokenizer, options: EncodeOptions
    ) -> tuple[Any, Stats]:
        """`encode` of text i of each list, put together as ``options.pair`` says."""

    def encode_id_pairs(
        self, first: list[list[int]], second: list[list[int]], options: EncodeOptions
    ) -> tuple[Any, Stats]:
        """`encode_pairs` for content ids that another tokenizer made."""

    def encode_ids(self, ids: list[list[int]], options: EncodeOptions) -> tuple[Any, Stats]:
        """`encode` for content ids that another tokenizer made."""
