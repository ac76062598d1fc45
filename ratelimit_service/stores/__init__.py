"""The stores, by the name in BACKEND_TYPE. To add one: its module, and one case here."""

from ratelimit_service.settings import Settings
from ratelimit_service.stores.store import Store

__all__ = ["Store", "open_store"]


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
