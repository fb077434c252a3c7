"""rac_jax from Python: `fit`, `load`, and the model that both return."""

from rac_jax.api.model import Model, fit, load

__all__ = ["Model", "fit", "load"]
