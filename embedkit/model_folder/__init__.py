"""Model folders in the sentence-transformers layout: the one reader and the one writer."""
