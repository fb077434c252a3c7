"""Models with the parameters of a weights file, for tests that compare outputs."""

import jax.numpy as jnp

from rac_jax import weights
from rac_jax.weights import merging, tensor_files


def load(model, source):
    """Fills `model` (shapes will do) from a file or a name of the catalogue, and returns it."""
    arrays = weights.read(model, source)
    for path, variable in merging.parameters(model).items():
        variable.set_value(jnp.asarray(arrays[path], jnp.float32))
    return model


def head(source, weight, bias):
    """The file's own classifier, which models leave out, as a function of features [B, D]."""
    tensors = tensor_files.read(weights.resolve(str(source)))
    kernel = jnp.asarray(tensors[weight], jnp.float32)
    kernel = kernel if "kernel" in weight else kernel.T
    return lambda features: features @ kernel + jnp.asarray(tensors[bias], jnp.float32)[None]
