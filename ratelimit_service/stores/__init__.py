"""The stores, by the name in BACKEND_TYPE. To add one: its module, and one case here."""

from pathlib import Path

from ratelimit_service.rules.versions import RuleStore
from ratelimit_service.settings import Settings
from ratelimit_service.stores.store import Store

__all__ = ["Store", "open_rule_store", "open_store"]


def open_store(settings: Settings) -> Store:
    """The store that the settings name."""
    match settings.backend_type:
        case "memory":
            from ratelimit_service.stores.memory import MemoryStore

            return MemoryStore(settings.memory_max_counters, max_bytes=settings.memory_max_bytes)
        case "redis":
            from ratelimit_service.stores.redis.store import open_redis

            return open_redis(settings)
        case unknown:
            raise KeyError(unknown)


def open_rule_store(settings: Settings) -> RuleStore | None:
    """Where the rules of the API are kept; None when the settings name no place. StartError when it cannot be used."""
    match settings.rules_store:
        case "":
            return None
        case "redis":
            from ratelimit_service.stores.redis.rules import RedisRules

            return RedisRules(settings)
        case folder:
            from ratelimit_service.rules.sources.rules_folder import RulesFolder

            return RulesFolder(Path(folder))
