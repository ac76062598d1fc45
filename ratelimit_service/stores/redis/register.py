"""Tells the register of regions at home of this process, and reads it: every few seconds, and before it asks.

A process that does not reach home goes by what others of its region have read, of which they keep a copy in the Redis
of the region. So a region that is cut off has its floors after a restart too.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from hashlib import sha1
from importlib.resources import files
from secrets import token_hex
from time import monotonic
from typing import Any, Final

from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.redis.faults import Fault
from ratelimit_service.stores.redis.floors import Floors, Grant, Record, Register, Share, Shares
from ratelimit_service.stores.redis.keys import region_keys, register_keys
from ratelimit_service.stores.redis.link import call_script, within
from ratelimit_service.stores.redis.replies import fitting
from ratelimit_service.system.clock import DAY, SECOND, Clock
from ratelimit_service.telemetry.metric import Metric, MetricType

log = logging.getLogger(__name__)

TELL_SECONDS: Final = 3.0
"""Seconds between two times that a process tells and reads."""

_REPLY_SECONDS: Final = 1.0
"""Seconds for each of the steps."""

_KEPT: Final = 400 * DAY // 1000
"""Milliseconds that a region's copy outlives its processes, which is as long as home remembers the region."""

_TRIES: Final = 5
"""Tries to change the register, when others do."""

Execute = Callable[..., Awaitable[Any]]
"""Sends a command to the server that has the key, its first argument. Raises Fault."""


class RegisterScript:
    """`register.lua`."""

    def __init__(self) -> None:
        self.text = files(__package__).joinpath("register.lua").read_text("utf-8")
        self.sha = sha1(self.text.encode(), usedforsecurity=False).hexdigest()


class Registrar:
    """Tells the register of one region for one process. `on_change` is called when floors may have changed."""

    def __init__(
        self,
        floors: Floors,
        home: Execute,
        own: Execute,
        prefix: str,
        *,
        on_change: Callable[[], None],
        clock: Clock | None = None,
    ) -> None:
        self.floors = floors
        self._home = home
        self._own = own
        self._keys, (self._name_key, self._copy_key) = register_keys(prefix), region_keys(prefix)
        self._script = RegisterScript()
        self._on_change = on_change
        self._clock = clock
        self._shares: dict[str, Shares] = {}
        """By their digests."""
        self._copy: Mapping[str, int] | None = None
        """As this process wrote it."""
        self._due = 0.0
        self._telling: asyncio.Task[None] | None = None
        self._fault = Fault("unreachable")
        """Why home was not reached, when it was not."""
        self.warnings: Mapping[str, str] = {}
        """In which setting regions differ wrongly, and how."""

    def use(self, rules: Iterable[Rule]) -> None:
        """Go by these rules, and tell so."""
        self.floors.use(rules)
        self._due = 0.0

    def sweep(self) -> None:
        """Tell when it is time to."""
        if monotonic() >= self._due and self._telling is None and self.floors.is_ready:
            self._tell()

    async def fresh(self) -> None:
        """Wait until so much is known that home may be asked. Raises Fault."""
        for _ in range(2):  # what runs may have begun before there was a rule
            if self.floors.is_fresh(_now()):
                return
            await asyncio.shield(self._telling or self._tell())
        if not self.floors.is_fresh(_now()):
            raise self._fault

    async def close(self) -> None:
        """Tell nothing more."""
        if self._telling is not None:
            self._telling.cancel()
            await asyncio.gather(self._telling, return_exceptions=True)

    def metrics(self) -> Sequence[Metric]:
        """Whether the regions' settings agree, once that is known."""
        names = () if self.floors.register is None else _WARNINGS
        return (
            Metric(
                "ratelimit_region_settings_agree",
                MetricType.GAUGE,
                "0 if another region has the same REGION, or another list of REGIONS, else 1.",
                [((("setting", name),), int(name not in self.warnings)) for name in names],
                merge_by_min=True,
            ),
        )

    def _tell(self) -> asyncio.Task[None]:
        self._due = monotonic() + TELL_SECONDS
        self._telling = asyncio.get_running_loop().create_task(self._run())
        return self._telling

    async def _run(self) -> None:
        try:
            try:
                await self._name_redis()
                await self._read_and_tell()
                await self._keep_copy()
            except Fault as fault:
                self._fault = fault
                self.floors.forget()
                await self._read_copy()
        except Fault:
            pass  # the Redis of the region is lost too
        except Exception:
            log.exception("updating the register of regions failed")
        finally:
            self._telling = None
            self._on_change()

    async def _name_redis(self) -> None:
        """Have a name in the region's Redis that is there as long as what it has."""
        command = (self._name_key, "GETEX", self._name_key, "PX", _KEPT)
        found = await within(_REPLY_SECONDS, self._own(*command))
        if found is None:
            value = token_hex(8)
            await within(_REPLY_SECONDS, self._own(self._name_key, "SET", self._name_key, value, "NX", "PX", _KEPT))
            found = await within(_REPLY_SECONDS, self._own(*command))
        with fitting("GETEX"):
            self.floors.redis = found.decode()

    async def _read_and_tell(self) -> None:
        floors, sent = self.floors, _now()
        own = floors.own if floors.is_fresh(sent) else None
        version, register = await self._call("" if own is None else _name_of(own))
        for _ in range(_TRIES):
            to_tell = floors.to_tell(register)
            if to_tell is None:
                break
            record, ended = to_tell
            told = [_name_of(record), version, _text_of(record), record.shares, json.dumps(floors.shares)]
            for before, after in ended:
                told += (_name_of(before), "" if after is None else _text_of(after))
            version, register = await self._call(*told)
        floors.learn(register, sent, _now())
        self._compare(register)

    async def _call(self, *arguments: str) -> tuple[str, Register]:
        """The register after this, and its version. Raises Fault."""
        now = 0 if self._clock is None else self._clock()
        key = self._keys[0]
        call = call_script(partial(self._home, key), self._script, self._keys, (now, *arguments))
        reply = await within(_REPLY_SECONDS, call)
        with fitting("the script of the register"):
            at, numbers = reply
            fields = {name.decode(): value for name, value in zip(numbers[::2], numbers[1::2], strict=True)}
            records = []
            for field, text in fields.items():
                kind, _, name = field.partition(" ")
                if kind == "record":
                    region, redis, digest = name.split("|")
                    since, steady, regions, written, changed = json.loads(text)
                    told, grants = int(fields[f"told {name}"]), {rule: Grant(*grant) for rule, grant in written.items()}
                    records.append(Record(region, redis, digest, since, steady, told, tuple(regions), grants, changed))
            version = fields.get("version", b"0").decode()
        await self._read_shares({record.shares for record in records})
        return version, Register(at, records, self._shares)

    async def _read_shares(self, digests: AbstractSet[str]) -> None:
        """Read the shares that are not known yet. Raises Fault."""
        own = {self.floors.digest: self.floors.shares}
        known = {digest: shares for digest, shares in {**self._shares, **own}.items() if digest in digests}
        for digest in digests - known.keys():
            text = await within(_REPLY_SECONDS, self._home(self._keys[1], "HGET", self._keys[1], digest))
            known[digest] = {name: Share(*share) for name, share in json.loads(text or "{}").items()}
        self._shares = known

    def _compare(self, register: Register) -> None:
        """Log when another region has this region's name, or another list of regions, and when that is over."""
        own = self.floors.own
        if own is None:
            return
        same, others = register.same_name(own), {record.region for record in register.other_lists(own)}
        differ = {"REGION": [own.region] if same else [], "REGIONS": sorted(others)}
        found = {name: _WARNINGS[name].format(", ".join(which)) for name, which in differ.items() if which}
        for name, text in found.items():
            if name not in self.warnings:
                log.warning("%s: %s", name, text)
        for name in self.warnings.keys() - found.keys():
            log.warning("%s: the regions agree again", name)
        self.warnings = found

    async def _keep_copy(self) -> None:
        at, granted = self.floors.copy()
        if granted != self._copy:
            self._copy = granted
            text = json.dumps([at, granted])
            await within(_REPLY_SECONDS, self._own(self._copy_key, "SET", self._copy_key, text, "PX", _KEPT))

    async def _read_copy(self) -> None:
        text = await within(_REPLY_SECONDS, self._own(self._copy_key, "GET", self._copy_key))
        if text is not None:
            self.floors.learn_copy(*json.loads(text))
        self._copy = None  # written again when home is reached


_WARNINGS: Final = {
    "REGION": "two regions are called {}: instances with this REGION have different Redises, and synced and split "
    "limits are exceeded; give each region a REGION of its own",
    "REGIONS": "REGIONS is not the same here as in {}: split limits may be exceeded; if it is not being changed, give "
    "all regions the same names in the same order",
}
"""The warnings by the setting in which regions differ."""


def _now() -> int:
    return int(monotonic() * SECOND)


def _name_of(record: Record) -> str:
    return f"{record.region}|{record.redis}|{record.shares}"


def _text_of(record: Record) -> str:
    return json.dumps([record.since, record.steady, record.regions, record.grants, record.changed])
