"""Engines: what runs the forward pass of a loaded model.

* `engine`: the interface (`Engine`, `EncodingEngine`), the arguments of a call (`Plan`), and counts (`Counts`).
* `opening`: which engine runs a model folder.
* `core_engine`, `pair_engine`: the compiled core, on texts and on pairs of texts.
* `router_engine`: a model with routes, each of which has an engine.
* `stage_engine`: any other backend: a tokenizer of the core and an encode stage.
* `stage`, `driver`: the interface of an encode stage (`Stage`, `Request`), and the pipeline that feeds it:
  tokenize ahead, cut into batches, restore the order.
* `cuda_engine`, `cuda`, `packed_stage`, `packed_model`, `cuda_device`, `buckets`, `many`: CUDA.
* `onnx_engine`, `onnx`, `onnx_session`, `onnx_files`, `numpy_head`: ONNX Runtime.

A new backend is a `Stage` in a module of its own, imported only when it is used.
"""
