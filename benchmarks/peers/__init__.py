"""The packages that embedkit is compared with, one small class each (see `base.Peer`).

A module is imported only when its peer is used, so a worker process loads only one package.
"""

from importlib import import_module, metadata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from peers.base import Peer

__all__ = ["choose", "peer_class"]

#: `--peers` name: module and class.
REGISTRY = {
    "embedkit-int8": "own:EmbedKitInt8",
    "embedkit-bf16": "own:EmbedKitBf16",
    "embedkit-fp32": "own:EmbedKit",
    "embedkit-onnx": "own:EmbedKitOnnx",
    "sentence-transformers": "sbert:SentenceTransformers",
    "sentence-transformers-bf16": "sbert:SentenceTransformersBf16",
    "onnxruntime-fp32": "ort:OnnxRuntime",
    "onnxruntime-int8": "ort:OnnxRuntimeInt8",
    "fastembed-fp32": "fe:FastEmbed",
    "fastembed-int8": "fe:FastEmbedInt8",
    "openvino-fp32": "ov:OpenVino",
    "openvino-bf16": "ov:OpenVinoBf16",
    "openvino-int8": "ov:OpenVinoInt8",
    "llama.cpp-int8": "lcpp:LlamaCpp",
    "ctranslate2-fp32": "ct2:CTranslate2",
    "ctranslate2-int8": "ct2:CTranslate2Int8",
}

#: The same on a GPU.
REGISTRY_CUDA = {
    "embedkit-cuda-bf16": "cuda:EmbedKitCuda",
    "embedkit-cuda-fp16": "cuda:EmbedKitCudaFp16",
    "embedkit-cuda-fp8": "cuda:EmbedKitCudaFp8",
    "embedkit-cuda-int8": "cuda:EmbedKitCudaInt8",
    "sentence-transformers-cuda-fp16": "cuda:SentenceTransformersCuda",
    "sentence-transformers-cuda-bf16": "cuda:SentenceTransformersCudaBf16",
    "sentence-transformers-cuda-compiled": "cuda:SentenceTransformersCudaCompiled",
    "sentence-transformers-cuda-flash": "cuda:SentenceTransformersCudaFlash",
}


def peer_class(key: str) -> "type[Peer]":
    """The class of a peer by its `--peers` name; imports none of the packages it needs."""
    module, name = (REGISTRY | REGISTRY_CUDA)[key].split(":")
    return getattr(import_module(f"peers.{module}"), name)


def choose(names: str, device: str = "cpu", isa: str | None = None) -> tuple[list[str], dict[str, str]]:
    """The peers to run, and the reason for each that is left out.

    Args:
        names: peers, "all" or "own" (embedkit), comma-separated.
        device: "cpu" or "cuda".
        isa: limit all peers to this instruction set; those that cannot be limited are left out.
    """
    registry = REGISTRY if device == "cpu" else REGISTRY_CUDA
    groups = {"all": list(registry), "own": [k for k in registry if k.startswith("embedkit")]}
    wanted = dict.fromkeys(key for name in names.split(",") for key in groups.get(name, [name]))
    unknown = [key for key in wanted if key not in registry]
    if unknown:
        raise SystemExit(f"--peers: no peer {unknown[0]!r}; there are {', '.join(registry)}, all, own")
    chosen, left_out = [], {}
    for key in wanted:
        missing = [p for p in peer_class(key).packages if not _installed(p)]
        if missing:
            left_out[key] = f"{', '.join(missing)} not installed"
        elif isa and isa not in peer_class(key).isa_environment:
            left_out[key] = f"cannot be limited to {isa}"
        else:
            chosen.append(key)
    return chosen, left_out


def _installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True
