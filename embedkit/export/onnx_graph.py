"""Converts a model folder to one ONNX graph: traced by torch, fused and converted by the tools of ONNX Runtime.

It uses the TorchScript exporter: ONNX Runtime does not fuse the attention in graphs of torch's newer exporter, which
are far slower.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

from ..forking import fork_lock
from ..model_folder.folder import ModelFolder

__all__ = ["write_graph"]

_OPSET = 17
_LARGEST = 1_900_000_000
"""Maximum bytes of weights in the graph's file, which protobuf limits to 2 GiB; larger weights go beside it."""

_CONVERTERS = r"(embedkit\.export|float16|onnx|onnxruntime|torch|transformers)(\.|$)"
"""Modules whose warnings are hidden; ONNX Runtime imports its float16 under this short name."""

_CONVERTING = fork_lock()


def write_graph(folder: ModelFolder, path: Path, precision: str) -> None:
    """Write the graph of a folder with fp32 weights to ``path``.

    Args:
        folder: a model of a supported type.
        path: the file to write; weights too large for it go beside it, under a name that begins with its name.
        precision: ``"fp32"``, ``"fp16"``, or ``"int8"``: 8-bit matrix products with dynamically quantized
            activations, embedding tables in fp32.
    """
    import torch
    import transformers  # noqa: F401 (whose handler `_quiet` is to find)

    from .sentence_graph import INPUTS, OUTPUTS, SentenceGraph

    with _quiet():
        model = SentenceGraph(folder).eval()
        inputs = INPUTS[: 2 if folder.pooling.include_prompt else 3]
        free = {0: "texts", 1: "tokens"}
        example = torch.ones(2, 5, dtype=torch.long)
        source = path.with_name("traced.onnx")
        try:
            torch.onnx.export(
                model,
                (example,) * len(inputs),
                str(source),
                input_names=list(inputs),
                output_names=list(OUTPUTS),
                dynamic_axes={**dict.fromkeys(inputs, free), OUTPUTS[0]: {0: "texts"}, OUTPUTS[1]: free},
                opset_version=_OPSET,
                dynamo=False,
            )
            large = sum(p.numel() for p in model.parameters()) * 4 > _LARGEST
            del model
            _convert(folder, source, path, precision, large=large)
        finally:
            source.unlink(missing_ok=True)


def _convert(folder: ModelFolder, source: Path, path: Path, precision: str, *, large: bool) -> None:
    """Fuse attention, layer norms, bias and GELU; then lower the precision."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.transformers.fusion_options import FusionOptions
    from onnxruntime.transformers.optimizer import optimize_model

    options = FusionOptions("bert")
    # the fused node has no room for ERNIE's tasks
    options.enable_embed_layer_norm = not folder.config.get("task_type_vocab_size")
    model = optimize_model(
        str(source),
        model_type="bert",
        num_heads=int(folder.config["num_attention_heads"]),
        hidden_size=folder.hidden_size,
        optimization_options=options,
        opt_level=0,  # the optimizations that ONNX Runtime applies on loading depend on the machine
    )
    if precision == "fp16":
        model.convert_float_to_float16(keep_io_types=True)
    fused = path if precision != "int8" else path.with_name("fused.onnx")
    try:
        model.save_model_to_file(str(fused), use_external_data_format=large)
        if precision == "int8":
            quantize_dynamic(
                str(fused),
                str(path),
                op_types_to_quantize=["MatMul", "Attention"],
                per_channel=True,
                weight_type=QuantType.QInt8,
                use_external_data_format=large,
                # The quantizer cannot infer types after fused operators; products of two activations stay in fp32.
                extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT, "MatMulConstBOnly": True},
            )
    finally:
        if fused != path:
            for left in path.parent.glob(f"{fused.name}*"):
                left.unlink()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep warnings and advice of the converters off the terminal; errors are raised. One conversion at a time.

    Hidden are what this thread logs below an error, and Python warnings of the converters' modules. What other threads
    log, print or warn of is not.
    """
    thread = threading.get_ident()

    def shown(record: logging.LogRecord) -> bool:
        return record.thread != thread or record.levelno >= logging.ERROR

    with _CONVERTING, contextlib.ExitStack() as stack, warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=_CONVERTERS)
        if not logging.root.handlers and logging.lastResort is not None:
            # ONNX Runtime logs by logging.warning, which gives a root logger without handlers one for good
            logging.root.addHandler(logging.lastResort)
            stack.callback(logging.root.removeHandler, logging.lastResort)
        loggers = [logging.root, *list(logging.root.manager.loggerDict.values())]
        for handler in {handler for logger in loggers for handler in getattr(logger, "handlers", ())}:
            handler.addFilter(shown)
            stack.callback(handler.removeFilter, shown)
        yield
