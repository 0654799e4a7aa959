"""Functions on onnx_ir graphs, without torch and independent of the model."""
