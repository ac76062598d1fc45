"""Where counters live, by the name BACKEND_TYPE gives them. To add one: its module, one case here."""

from ratelimit_service.settings import Settings
from ratelimit_service.stores.store import Store

__all__ = ["Store", "open_store"]


def open_store(settings: Settings) -> Store:
    """The store the settings ask for."""
    match settings.backend_type:
        case "memory":
            from ratelimit_service.stores.memory import MemoryStore

            return MemoryStore(settings.memory_max_counters, most_bytes=settings.memory_max_bytes)
        case "redis":
            from ratelimit_service.stores.redis.store import open_redis

            return open_redis(settings)
        case unknown:
            raise KeyError(unknown)
