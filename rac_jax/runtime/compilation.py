"""The persistent compilation cache: a second start of a run does not compile its programs again."""

import os
from pathlib import Path

import jax
from ml_collections import ConfigDict

OFF = "off"


def keep_programs(config: ConfigDict, *, also_small: bool = False) -> None:
    """Use the folder config.compiled, unless the environment sets JAX_COMPILATION_CACHE_DIR.

    JAX never caches programs with a callback, such as the lookup; the training step has none. With `also_small`,
    programs that compile in less than a second are kept too: all that an answer to one image needs.
    """
    if also_small:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    if config.compiled != OFF and not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        jax.config.update("jax_compilation_cache_dir", str(folder(config)))


def folder(config: ConfigDict) -> Path:
    """The config's folder, or by default rac_jax/compiled in the user's cache folder."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(config.compiled) if config.compiled else caches / "rac_jax" / "compiled"
