"""Models in the formats of other runtimes. `onnx.export_onnx` writes a folder for ONNX Runtime."""
