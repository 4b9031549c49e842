"""Searching an index: queries to hits."""
