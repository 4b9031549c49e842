"""Writing an index: build, add, upsert, delete, compact, import and export."""
