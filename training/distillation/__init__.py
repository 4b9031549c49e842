"""Distill any sentence encoder, or several, into a small student from texts without labels."""
