"""An HTTP server of embeddings, reranking and search: ``embedkit-serve``; needs ``embedkit[serve]``."""
