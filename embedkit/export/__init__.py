"""Export of models for other runtimes: `onnx.export_onnx` writes a folder for ONNX Runtime."""
