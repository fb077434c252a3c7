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
"""

from rac_jax.runtime import starting

starting.guard_imports()
