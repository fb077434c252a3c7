"""The small memory of tests/memory, looked up in."""

from tests.memory.conftest import config, exact, keys, memory, snippets

__all__ = ["config", "exact", "keys", "memory", "snippets"]
