"""What programs written for `sentence_transformers.SentenceTransformer` call besides `encode`.

What makes sense without torch modules works as it does there; the rest says in one line what to use instead.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from .arguments import check_same_device
from .forking import cached_property
from .sentence_model import SentenceModel

if TYPE_CHECKING:
    from .encoder import Dtype

__all__ = ["DropIn", "Pool"]

_Self = TypeVar("_Self", bound="DropIn")

_NO_MODULES = (
    "an Encoder has no torch modules: describe(), max_seq_length and tokenizer tell what it is made of, "
    "and sentence_transformers.SentenceTransformer opens a folder that save() wrote"
)
_INSTEAD = {
    "preprocess": "tokenize(texts) returns the token ids, and encode(texts) the embeddings",
    "forward": "encode(texts) returns the embeddings; with output_value='token_embeddings' those of tokens",
    "fit": "embedkit-train and embedkit.training train models",
    "old_fit": "embedkit-train and embedkit.training train models",
    "train": "embedkit-train and embedkit.training train models; an Encoder is always in evaluation mode",
    "parameters": _NO_MODULES,
    "named_parameters": _NO_MODULES,
    "state_dict": _NO_MODULES,
    "modules": _NO_MODULES,
    "children": _NO_MODULES,
    "half": "open it with Encoder(model, precision='bf16'), or on CUDA precision='fp16'",
    "bfloat16": "open it with Encoder(model, precision='bf16')",
    "float": "open it with Encoder(model, precision='fp32')",
    "compile": "the core is compiled already",
    "evaluate": "call the evaluator: evaluator(encoder)",
    "set_pooling_include_prompt": "the folder says it: include_prompt in the config.json of its pooling module",
    "get_backend": "describe()['device'], and describe()['providers'] with backend='onnx', tell where it runs",
    "push_to_hub": "write a folder with save(), and upload it with huggingface_hub.upload_folder",
    "save_to_hub": "write a folder with save(), and upload it with huggingface_hub.upload_folder",
}


class Pool(dict[str, Any]):
    """What `DropIn.start_multi_process_pool` returns: no processes, as `encode` uses all cores or devices by itself."""


class DropIn(SentenceModel):
    """Methods of ``SentenceTransformer`` for `Encoder`."""

    _instead = _INSTEAD

    def get_max_seq_length(self) -> int:
        """`max_seq_length`."""
        return self.max_seq_length

    def save_pretrained(
        self,
        path: str | os.PathLike[str],
        model_name: str | None = None,
        create_model_card: bool = True,
        train_datasets: Sequence[str] | None = None,
        safe_serialization: bool = True,
    ) -> None:
        """`save` to the folder ``path``, which must not exist or be empty.

        Raises:
            FileExistsError: the folder exists and is not empty.
            ValueError: ``safe_serialization`` is false: folders hold safetensors.
        """
        if not safe_serialization:
            raise ValueError("safe_serialization=False is not supported: model folders hold safetensors")
        self.save(path)

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer of transformers for this model, loaded from its folder; `tokenize` needs no transformers.

        A copy: changes to it do not change how the encoder reads texts, and `max_seq_length` is passed to it once.

        Raises:
            ImportError: transformers is not installed.
        """
        try:
            from transformers import AutoTokenizer
        except ImportError as error:
            raise ImportError(
                "Encoder.tokenizer is that of transformers, which is not installed; Encoder.tokenize(texts) returns "
                "the token ids without it"
            ) from error
        folder = self._engine.folder.transformer
        return AutoTokenizer.from_pretrained(str(folder), model_max_length=self.max_seq_length)

    def to(self: _Self, device: Any = None, *args: Any, **options: Any) -> _Self:
        """Return the encoder, if it is on ``device`` already.

        Raises:
            ValueError: it is not; the message says how to open one there.
        """
        target = options.pop("device", device)
        if (
            args
            or options
            or not (target is None or isinstance(target, (str, list, tuple)) or _is_device(target))
        ):
            raise ValueError(
                "an Encoder does not change its numbers once it is open; open one with Encoder(model, precision=...)"
            )
        if target is not None:
            check_same_device(
                target if isinstance(target, (list, tuple)) else str(target), self._options.devices
            )
        return self

    def cpu(self: _Self) -> _Self:
        """``to("cpu")``."""
        return self.to("cpu")

    def cuda(self: _Self, device: int | str | None = None) -> _Self:
        """``to("cuda")``, or the device of that number."""
        return self.to(f"cuda:{device}" if isinstance(device, int) else device or "cuda")

    def start_multi_process_pool(self, target_devices: Iterable[str] | None = None) -> Pool:
        """Start nothing: `encode` uses all cores, or all devices of `Encoder(device=[...])`, by itself.

        Raises:
            ValueError: ``target_devices`` names a device that the encoder is not on.
        """
        own = self._options.devices
        for device in dict.fromkeys(target_devices or ()):
            if str(device) not in own:
                check_same_device(device, own)
        return Pool(input=None, output=None, processes=[])

    @staticmethod
    def stop_multi_process_pool(pool: Pool) -> None:
        """End nothing; see `start_multi_process_pool`."""

    def encode_multi_process(  # noqa: PLR0917 (the positions of sentence-transformers)
        self,
        sentences: Iterable[str],
        pool: Pool | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        chunk_size: int | None = None,
        show_progress_bar: bool | None = None,
        precision: Dtype | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        **options: Any,
    ) -> Any:
        """`encode`; ``pool`` and ``chunk_size`` have no effect."""
        return self.encode(
            sentences,
            prompt_name,
            prompt,
            batch_size,
            show_progress_bar,
            precision=precision,
            normalize_embeddings=normalize_embeddings,
            truncate_dim=truncate_dim,
            **options,
        )

    @contextmanager
    def truncate_embeddings(self, truncate_dim: int | None) -> Iterator[None]:
        """Inside, `encode` keeps ``truncate_dim`` leading dimensions, in every thread that uses this encoder."""
        before = self.truncate_dim
        self.truncate_dim = truncate_dim
        try:
            self.get_embedding_dimension()  # raises if it is out of range
            yield
        finally:
            self.truncate_dim = before

    truncate_sentence_embeddings = truncate_embeddings

    def __getitem__(self, module: object) -> NoReturn:
        """There are no modules.

        Raises:
            TypeError: always; names what to use.
        """
        raise TypeError(_NO_MODULES)

    if TYPE_CHECKING:
        encode: Any

    def __getstate__(self) -> dict[str, Any]:
        """As of any model; the receiver loads its own tokenizer."""
        state = super().__getstate__()
        state.pop("tokenizer", None)
        return state


def _is_device(value: object) -> bool:
    """Whether it is a ``torch.device``, which need not be imported to be compared."""
    return type(value).__name__ == "device" and type(value).__module__ == "torch"
