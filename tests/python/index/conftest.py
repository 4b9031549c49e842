import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from fake_encoder import FakeEncoder


@pytest.fixture
def encoder():
    return FakeEncoder()
