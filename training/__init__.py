"""Training of small encoders from large ones, installed as ``embedkit.training``."""
