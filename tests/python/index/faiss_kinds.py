"""What the lowest version of Faiss that embedkit takes does not have yet."""

import faiss
import pytest

needs_rabitq = pytest.mark.skipif(not hasattr(faiss, "IndexRaBitQ"), reason="this Faiss has no RaBitQ")
needs_lists_of_quantizers = pytest.mark.skipif(
    "reconstruct_from_offset" not in vars(faiss.IndexIVFAdditiveQuantizer),
    reason="this Faiss does not give the vectors of an IVF with additive quantizers back",
)
