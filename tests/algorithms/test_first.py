"""`charge: first`: its laws, on the Python and on its twin in a real Redis."""

from collections.abc import Sequence
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from redis import Redis as Client

from ratelimit_service.algorithms import open_algorithm
from ratelimit_service.algorithms.kinds.reserved import Reserved
from ratelimit_service.model import PLAIN, Limit, Unit, settling
from ratelimit_service.rules.rule import FIRST, Rule
from ratelimit_service.stores.hit import FIRST_BUNDLE, Hit
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.system.clock import MINUTE, SECOND
from tests.algorithms.test_twins import Batch, hit, in_memory, in_redis
from tests.clocks import Clock

T0 = 1_790_000_000 * SECOND
WAYS = ("fixed_window", "sliding_window", "sub_windows", "token_bucket", "sliding_log")
RESERVING = WAYS[:-1]


def a_list(random: Random, *, reserves: bool) -> list[Rule]:
    """The rules of a list."""
    rules = []
    for number in range(random.randint(1, 4)):
        way = random.choice(RESERVING if reserves else WAYS)
        kind = Reserved(random.choice([MINUTE // 2, 3 * MINUTE]), bucket=way == "token_bucket") if reserves else PLAIN
        limit = Limit(
            random.choice([0, 1, 3, 10, 50]),
            Unit.MINUTE,
            random.choice([MINUTE, MINUTE, 5 * MINUTE]),
            burst=random.choice([0, 0, 4]) if way == "token_bucket" else 0,
            first_request=way == "fixed_window" and random.random() < 0.3,
            count_refused=False,
            exceed=random.choice([0, 0, 2]),
            kind=kind,
        )
        rules.append(Rule("shop", (), limit, open_algorithm(way), name=f"{number}", together=FIRST))
    return rules


def hits_of(rules: Sequence[Rule], cost: int, *, id: str = "", settles: bool = False, bundle: int = 2) -> list[Hit]:  # noqa: A002
    """A request for a list, or a settle of one."""
    hits = [hit(rule, f"ada|{rule.key_suffix}", cost, bundle) for rule in rules]
    for each in hits:
        each.limit = each.limit.kind.held_by(each.limit, id)
        each.limit = settling(each.limit) if settles else each.limit
    return hits


def a_history(random: Random) -> list[tuple[int, Batch]]:
    lists = [a_list(random, reserves=False), a_list(random, reserves=True)]
    now, history = T0, []
    for _ in range(30):
        now += random.choice([0, 0, 1, SECOND, 7 * SECOND, MINUTE // 3, MINUTE])
        batch = []
        for _ in range(random.randint(1, 3)):
            hits: list[Hit] = []
            for bundle in range(FIRST_BUNDLE, FIRST_BUNDLE + random.randint(1, 2)):
                settles = random.random() < 0.3
                cost = random.choice([1, 1, 2, 3, 5, 12, 0] if settles else [1, 1, 1, 2, 3, 5, 12, 0, 0, -1, -4])
                hits += hits_of(random.choice(lists), cost, id=random.choice("abcd"), settles=settles, bundle=bundle)
            batch.append(hits)
        history.append((now, batch))
    return history


@given(st.integers(0, 2**64))
def test_a_twin_chooses_and_answers_as_the_python_does(client: Client, seed: int) -> None:
    history = a_history(Random(seed))  # noqa: S311 - the seed tells the history
    hits = [(now, each) for now, batch in history for requests in batch for each in requests]

    expected = in_memory(history)
    spared = [each.spared for _, each in hits]
    for _, each in hits:
        each.spared = False
    got = in_redis(client, history)

    for step, ((now, each), in_python, in_lua) in enumerate(zip(hits, expected, got, strict=True)):
        assert (step, now, each.rule.limit, each.cost, in_python) == (step, now, each.rule.limit, each.cost, in_lua)
    assert spared == [each.spared for _, each in hits]


class Ledger:
    """What a list should have charged: an amount for each limit, and for each id where it was reserved."""

    def __init__(self, limits: Sequence[int], *, reserves: bool) -> None:
        self.limits = limits
        self.used = [0] * len(limits)
        self.ids: dict[str, tuple[int, int, bool]] = {}
        """By id, the limit, what was reserved there, and whether that is settled."""
        self.reserves = reserves

    def left(self) -> list[int]:
        return [max(0, limit - used) for limit, used in zip(self.limits, self.used, strict=True)]

    def request(self, id: str, cost: int) -> int | None:  # noqa: A002
        at, _, settled = self.ids.get(id, (0, 0, True))
        if not settled:
            return at
        free = [limit - used for limit, used in zip(self.limits, self.used, strict=True)]
        found = next((number for number, room in enumerate(free) if room >= cost), None)
        if found is not None:
            self.used[found] += cost
            if self.reserves:
                self.ids[id] = found, cost, False
        return found

    def settle(self, id: str, cost: int) -> int:  # noqa: A002
        last = len(self.used) - 1
        if not self.reserves:
            found = next((number for number, room in enumerate(self.left()) if room), last)
            self.used[found] += cost
            return found
        found, reserved, settled = self.ids.get(id, (last, 0, False))
        if not settled:
            self.used[found] += cost - reserved
            if id in self.ids or cost:
                self.ids[id] = found, 0, True
        return found

    def look(self) -> int | None:
        last = len(self.used) - 1
        found = next((number for number, room in enumerate(self.left()) if room), last)
        return None if found == last and self.used[last] > self.limits[last] else found


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=4),
    st.booleans(),
    st.lists(st.tuples(st.sampled_from(["request", "settle", "look"]), st.sampled_from("abcdef"), st.integers(1, 9))),
)
def test_each_is_charged_whole_to_the_first_with_room_and_no_limit_is_passed_over_that_has_some(
    limits: list[int],
    reserves: bool,
    steps: list[tuple[str, str, int]],
) -> None:
    kind = Reserved(MINUTE) if reserves else PLAIN
    made = [Limit(each, Unit.YEAR, Unit.YEAR.window, count_refused=False, kind=kind) for each in limits]
    window = open_algorithm("fixed_window")
    rules = [Rule("shop", (), each, window, name=f"{number}", together=FIRST) for number, each in enumerate(made)]
    ledger, store = Ledger(limits, reserves=reserves), MemoryStore(1000, Clock(T0))

    for what, id, cost in steps:  # noqa: A001
        hits = hits_of(rules, 0 if what == "look" else cost, id=id, settles=what == "settle")
        store.hit(hits, lambda _: None)
        charged = [number for number, each in enumerate(hits) if not each.spared]
        if what == "settle":
            assert charged == [ledger.settle(id, cost)]
        else:
            expected = ledger.look() if what == "look" else ledger.request(id, cost)
            assert [each.decision.allowed for each in hits] == [expected is not None] * len(hits)
            assert charged == ([*range(len(hits))] if expected is None else [expected])
        assert [each.decision.remaining for each in hits] == ledger.left()
