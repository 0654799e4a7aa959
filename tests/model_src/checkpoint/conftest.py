"""A stock state dict, as tests of reading change it."""

import pytest

from tests.model_src.checkpoint.files import State
from tests.support import tutorial


@pytest.fixture
def state() -> State:
    return dict(tutorial.make().state_dict())
