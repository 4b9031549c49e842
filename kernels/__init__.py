"""Triton kernels for GPU encoders, installed as ``embedkit.kernels``."""
