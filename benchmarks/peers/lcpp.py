"""llama.cpp on a BERT folder converted to GGUF here: Q8_0 weights (blocks of 32 with one scale), activations likewise.

It takes token ids, so tokenization is that of the other peers. Norms, biases and positions stay fp32, as in its own
converter.
"""

import json
import queue
from pathlib import Path
from typing import Any

import numpy as np

from peers.base import BATCHES, Batched, Setting, max_length, pooling

#: GGUF's name of each weight of a BERT layer.
LAYER = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
EMBEDDINGS = {
    "embeddings.word_embeddings.weight": "token_embd.weight",
    "embeddings.position_embeddings.weight": "position_embd.weight",
    "embeddings.token_type_embeddings.weight": "token_types.weight",
    "embeddings.LayerNorm.weight": "token_embd_norm.weight",
    "embeddings.LayerNorm.bias": "token_embd_norm.bias",
}
#: Of a batch: its memory for scores grows with the square.
MOST_TOKENS = 2048


def write_gguf(folder: Path, target: Path) -> None:
    """Write the folder as GGUF."""
    import gguf
    from safetensors.numpy import load_file

    config = json.loads((folder / "config.json").read_text())
    if config["model_type"] != "bert":
        raise ValueError(f"{folder}: only BERT is converted, not {config['model_type']}")
    mode = {"mean": gguf.PoolingType.MEAN, "cls": gguf.PoolingType.CLS}[pooling(folder, "mean", "cls")]
    writer = gguf.GGUFWriter(str(target), "bert")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(mode)
    _add_vocabulary(writer, folder, config["type_vocab_size"])
    tensors = {name.removeprefix("bert."): t for name, t in load_file(folder / "model.safetensors").items()}
    names = dict(EMBEDDINGS)
    for layer in range(config["num_hidden_layers"]):
        for theirs, own in LAYER.items():
            for kind in ("weight", "bias"):
                names[f"encoder.layer.{layer}.{theirs}.{kind}"] = f"blk.{layer}.{own}.{kind}"
    q8 = gguf.GGMLQuantizationType.Q8_0
    for name, own in names.items():
        tensor = tensors[name].astype(np.float32)
        if tensor.ndim == 2 and own not in ("position_embd.weight", "token_types.weight"):
            writer.add_tensor(own, gguf.quants.quantize(tensor, q8), raw_dtype=q8)
        else:
            writer.add_tensor(own, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_vocabulary(writer: Any, folder: Path, token_types: int) -> None:
    """The vocabulary, which llama.cpp asks for although it is given ids."""
    import gguf

    tokens = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")[:-1]
    special = {"[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"}
    normal, control = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL
    # A word's first piece is marked instead of its others.
    marked = [t if t in special else t[2:] if t.startswith("##") else "\u2581" + t for t in tokens]
    writer.add_tokenizer_model("bert")
    writer.add_token_list(marked)
    writer.add_token_types([control if t in special else normal for t in tokens])
    writer.add_token_type_count(token_types)
    for name, add in (
        ("[UNK]", "unk"),
        ("[SEP]", "sep"),
        ("[PAD]", "pad"),
        ("[MASK]", "mask"),
        ("[CLS]", "bos"),
    ):
        getattr(writer, f"add_{add}_token_id")(tokens.index(name))


class LlamaCpp(Batched):
    """Q8_0."""

    name = "llama.cpp int8"
    precision = "int8"
    packages = ("llama-cpp-python", "gguf", "safetensors", "tokenizers")

    @property
    def converted(self) -> Path:
        """The GGUF file."""
        return self.cache / "q8_0.gguf"

    def convert(self) -> None:
        """Write it."""
        if self.converted.exists():
            return
        part = self.converted.with_suffix(".part")
        write_gguf(self.folder, part)
        part.rename(self.converted)

    def _load(self, streams: int) -> None:
        import llama_cpp as c

        self._silent = c.llama_log_callback(lambda *_: None)  # kept: the library holds no reference
        c.llama_log_set(self._silent, None)
        c.llama_backend_init()
        self._tokens = max(MOST_TOKENS, max_length(self.folder))
        self._model = c.llama_model_load_from_file(
            str(self.converted).encode(), c.llama_model_default_params()
        )
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot read {self.converted}")
        self._size = c.llama_model_n_embd(self._model)
        self._contexts: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for _ in range(streams):
            self._contexts.put(self._context(max(1, self.threads // streams)))

    def _context(self, threads: int) -> Any:
        import llama_cpp as c

        params = c.llama_context_default_params()
        params.embeddings = True
        params.n_ctx = params.n_batch = params.n_ubatch = self._tokens
        params.n_seq_max = max(s.batch or 1 for s in self.settings())
        params.n_threads = params.n_threads_batch = threads
        params.kv_unified = True
        context = c.llama_init_from_model(self._model, params)
        if not context:
            raise RuntimeError("llama.cpp makes no context")
        return context

    def _run(self, ids: list[list[int]]) -> np.ndarray:
        import llama_cpp as c

        if sum(map(len, ids)) > self._tokens:
            half = len(ids) // 2
            return np.concatenate([self._run(ids[:half]), self._run(ids[half:])])
        context = self._contexts.get()
        batch = c.llama_batch_init(sum(map(len, ids)), 0, 1)
        try:
            at = 0
            for sequence, row in enumerate(ids):
                for position, token in enumerate(row):
                    batch.token[at], batch.pos[at] = token, position
                    batch.n_seq_id[at], batch.seq_id[at][0] = 1, sequence
                    batch.logits[at] = 1
                    at += 1
            batch.n_tokens = at
            if code := c.llama_encode(context, batch):
                raise RuntimeError(f"llama_encode returned {code}")
            out = np.stack(
                [
                    np.ctypeslib.as_array(c.llama_get_embeddings_seq(context, s), (self._size,))
                    for s in range(len(ids))
                ]
            )
        finally:
            c.llama_batch_free(batch)
            self._contexts.put(context)
        return np.asarray(out / np.linalg.norm(out, axis=1, keepdims=True), np.float32)

    def settings(self) -> list[Setting]:
        """Scores are computed between all tokens of a batch and masked, so small batches may be best."""
        return [Setting(b, s) for s in sorted({1, self.threads}) for b in BATCHES]
