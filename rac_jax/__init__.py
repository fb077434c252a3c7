"""Retrieval Augmented Classification: a classifier with an external memory.

    image ──► B ───────────────────────────────────────────► base logits ──────┐
      │                                                                        ├─► fused logits
      └─────► E ──► key ──► index ──► neighbours ──► texts ──► T ──► retrieval ┘

data/ makes batches of images; memory/ holds the keys and texts of pre-encoded images and looks
neighbours up; feed.py brings the two together; models/ has B and E (image encoders), T (text encoders)
and their fusion; weights/ reads the files of other projects. train.py and evaluate.py put them together,
and main.py starts either.
"""

from rac_jax.runtime import starting

starting.guard_imports()
