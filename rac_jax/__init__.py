"""Retrieval Augmented Classification: an image classifier with an external memory.

    image ──► B ──────────────────────────────────────────────► base ───────┐
      │                                                                     │
      └─────► E ──► key ──► memory ──► neighbours ──► texts ──► T ──► text ─┼─► fusion ──► answer
                     │         │           └───────► labels ───────► vote ──┤
                     └─────────┴──► class means ───────────────► prototype ─┘

data/ makes batches of images. memory/ keeps rows of (key, label, text). retrieval/ finds the neighbours of an image:
E, the lookup, and the texts as tokens. models/ has B and E (image encoders), T (text encoders), the voices and their
fusion. weights/ reads files of other projects. run.py puts these together; train.py, evaluate.py and predict.py use
them, and main.py is the command line.

From Python: `rac_jax.fit(…)` makes a model of your images, `rac_jax.load(workdir)` opens a trained run; see api/.
"""

from typing import TYPE_CHECKING, Any

from rac_jax.runtime import starting

if TYPE_CHECKING:
    from rac_jax.api import Model, fit, load

__all__ = ["Model", "fit", "load"]

starting.use_huge_pages()
starting.guard_imports()


def __getattr__(name: str) -> Any:
    """Import api/, and with it jax, when it is first used."""
    if name in __all__:
        from rac_jax import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
