"""Compiled programs, kept from one start of a run to the next."""

import os
from pathlib import Path

import jax
from ml_collections import ConfigDict

OFF = "off"


def keep_programs(config: ConfigDict) -> None:
    """Use the folder config.compiled. What the user told JAX itself (JAX_COMPILATION_CACHE_DIR) is left alone.

    A program with a callback, which the lookup is in, is never kept; the training step has none.
    """
    if config.compiled != OFF and not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        jax.config.update("jax_compilation_cache_dir", str(folder(config)))


def folder(config: ConfigDict) -> Path:
    """Where programs are kept: the config's folder, or one among the user's caches."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(config.compiled) if config.compiled else caches / "rac_jax" / "compiled"
