"""Searching an index: from queries to hits."""
