"""What functions of a module remember, forgotten as if this process had just begun."""

from types import ModuleType


def forget(*modules: ModuleType) -> None:
    """Empty the caches of all functions of these modules."""
    for module in modules:
        for cached in vars(module).values():
            if hasattr(cached, "cache_clear"):
                cached.cache_clear()
