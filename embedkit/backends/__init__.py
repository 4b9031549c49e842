"""Encode stages outside the core: what runs the model where the C++ encoder does not.

* `stage`: what a backend has to offer (`Stage`), and what is asked of it (`Request`).
* `driver`: texts to vectors through a stage: tokenized ahead, cut into batches, put back in order.
* `engine`: the two behind `embedkit.Encoder`.

A new backend is a `Stage` in a module of its own, which may import what is heavy.
"""
