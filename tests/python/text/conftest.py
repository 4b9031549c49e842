from __future__ import annotations

import pytest
from tokenizer_pair import OPTIONS, Pair, character_vocabulary, special, subword_vocabulary


@pytest.fixture(scope="session")
def characters() -> Pair:
    return Pair(character_vocabulary(), special())


@pytest.fixture(scope="session")
def subwords() -> Pair:
    return Pair(subword_vocabulary(), special())


@pytest.fixture(scope="session", params=OPTIONS)
def variant(request: pytest.FixtureRequest) -> Pair:
    """Each set of options, with the vocabulary of all characters."""
    return Pair(character_vocabulary(), special(), **OPTIONS[request.param])
