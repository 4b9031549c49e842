"""Adapters: embedkit where another library expects an embedder, a module for each host.

Each is a small class over `Encoder` or `Index`, imports its host when it is imported itself, and is installed with
it by an extra: ``pip install 'embedkit[langchain]'`` and so on.
"""
