"""Words for the full-text half of a search: languages, stems, stop words, and scripts without spaces."""
