"""Helpers on onnx_ir: no torch, and nothing about any one model."""
