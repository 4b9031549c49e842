"""The model folder as an ONNX graph with pooling and normalization inside, for ONNX Runtime and OpenVINO."""

import contextlib
import inspect
import io
import json
import logging
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

from peers.base import pooling

__all__ = ["export", "fuse", "quantize", "quiet"]

OPSET = 17


def export(folder: Path, target: Path) -> None:
    """Write the fp32 graph (input_ids, attention_mask) -> unit vectors, with dynamic batch and length.

    The TorchScript exporter with eager attention writes the pattern that ONNX Runtime's optimizer recognizes; `fuse`
    refuses a graph in which the attention of a layer was not recognized.
    """
    import torch
    from transformers import AutoModel

    class SentenceEncoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
            self.bert.config.use_cache = False
            self.two_masks = self.bert.config.model_type == "gemma3_text"
            self.typed = "token_type_ids" in inspect.signature(self.bert.forward).parameters
            self.mode = pooling(folder, "mean", "cls", "lasttoken")

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            types = {"token_type_ids": torch.zeros_like(input_ids)} if self.typed else {}
            mask = self._masks(attention_mask) if self.two_masks else attention_mask
            hidden = self.bert(input_ids=input_ids, attention_mask=mask, **types)[0]
            if self.mode == "cls":
                pooled = hidden[:, 0]
            elif self.mode == "lasttoken":
                last = (attention_mask.sum(1) - 1).view(-1, 1, 1).expand(-1, 1, hidden.shape[-1])
                pooled = hidden.gather(1, last).squeeze(1)
            else:
                kept = attention_mask.unsqueeze(-1).to(hidden.dtype)
                pooled = (hidden * kept).sum(1) / kept.sum(1)
            return torch.nn.functional.normalize(pooled, dim=-1)

        def _masks(self, attention_mask: torch.Tensor) -> dict[str, torch.Tensor]:
            """Gemma's masks of global and local layers, ready-made: the tracer cannot follow the model's own."""
            places = torch.ones_like(attention_mask[0]).cumsum(
                0
            )  # the tracer would fix the length of an arange
            near = (places[:, None] - places).abs() < self.bert.config.sliding_window
            seen = attention_mask[:, None, None, :].bool()
            lowest = torch.finfo(torch.float32).min
            return {
                "full_attention": torch.where(seen, 0.0, lowest),
                "sliding_attention": torch.where(seen & near, 0.0, lowest),
            }

    example = torch.ones(2, 5, dtype=torch.long)
    free = {0: "texts", 1: "tokens"}
    with quiet():
        torch.onnx.export(
            SentenceEncoder(),
            (example, example),
            str(target),
            input_names=["input_ids", "attention_mask"],
            output_names=["vectors"],
            dynamic_axes={"input_ids": free, "attention_mask": free, "vectors": {0: "texts"}},
            opset_version=OPSET,
            dynamo=False,
        )


def fuse(folder: Path, source: Path, target: Path) -> None:
    """Run ONNX Runtime's transformer optimizer: fuse attention, embedding and layer norm, bias and GELU.

    It knows BERT's layers only. The graph of another family stays as it is: ONNX Runtime fuses what it can on loading.
    """
    from family_shapes import GATED

    config = json.loads((folder / "config.json").read_text())
    if config["model_type"] in (*GATED, "deberta-v2"):
        target.write_bytes(source.read_bytes())
        return
    from onnxruntime.transformers.fusion_options import FusionOptions
    from onnxruntime.transformers.optimizer import optimize_model

    with quiet():
        model = optimize_model(
            str(source),
            model_type="bert",
            num_heads=config["num_attention_heads"],
            hidden_size=config["hidden_size"],
            optimization_options=FusionOptions("bert"),
            opt_level=0,
        )
    fused = model.get_fused_operator_statistics()
    if fused.get("Attention", 0) != config["num_hidden_layers"]:
        raise RuntimeError(
            f"only {fused.get('Attention', 0)} of {config['num_hidden_layers']} attention layers fused"
        )
    model.save_model_to_file(str(target))


def quantize(source: Path, target: Path, *, reduce_range: bool) -> None:
    """Quantize to dynamic int8: signed weights per output channel, unsigned activations, fp32 embeddings.

    ``reduce_range``: weights of 7 bits, which ONNX Runtime's documentation wants where sums of products saturate.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with quiet():
        quantize_dynamic(
            str(source),
            str(target),
            op_types_to_quantize=["MatMul", "Attention"],
            per_channel=True,
            reduce_range=reduce_range,
            weight_type=QuantType.QInt8,
            # The quantizer cannot infer types after fused operators.
            extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
        )


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress the converters' progress and warnings; errors are still raised."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
