"""The index folder: manifests, segments, documents, ids and vectors."""
