"""What is used of a counter, also above its limit."""

import pytest

from ratelimit_service.algorithms import open_algorithm
from ratelimit_service.model import Limit, Unit
from ratelimit_service.stores.used import endless, used_of
from ratelimit_service.system.clock import MINUTE, SECOND


@pytest.mark.parametrize("name", ["fixed_window", "sliding_window", "sub_windows", "token_bucket", "leaky_bucket"])
@pytest.mark.parametrize(("owed", "used"), [(0, 0), (300, 300), (1000, 1000), (1700, 1700)])
def test_a_debt_is_used_above_the_limit(name: str, owed: int, used: int) -> None:
    algorithm, limit, now = open_algorithm(name), Limit(1000, Unit.MINUTE, MINUTE), 1_790_000_000 * SECOND
    state = algorithm.owe(None, limit, owed, now) if owed else None
    whole = endless(limit, name)
    _, look = algorithm.hit(state, whole, 0, now)

    assert used_of(whole, name, look) == used
