"""What a model draws while it trains: one number an example, by the example's place in the global batch."""

import flax.struct
import jax


class Draws(flax.struct.PyTreeNode):
    """A source of random numbers for a batch, or for one of the parts that it is worked through in.

    Numbers are drawn for the whole batch and the part's are taken, so that an example draws the same whether the
    batch comes in one piece or in many, on one device or on many.
    """

    key: jax.Array
    part: jax.Array | int = 0  # which of the parts; each has `parts`-th of the rows of every device
    parts: int = flax.struct.field(pytree_node=False, default=1)
    devices: int = flax.struct.field(pytree_node=False, default=1)

    def fold_in(self, number: int) -> "Draws":
        """A source of its own for a block of the model."""
        return self.replace(key=jax.random.fold_in(self.key, number))

    def split(self) -> tuple["Draws", "Draws"]:
        """Two sources."""
        first, second = jax.random.split(self.key)
        return self.replace(key=first), self.replace(key=second)

    def bernoulli(self, probability: float, examples: int) -> jax.Array:
        """True with this probability for each of the part's examples, [examples]."""
        whole = jax.random.bernoulli(self.key, probability, (examples * self.parts,))
        if self.parts == 1:
            return whole
        return part_of(whole, self.part, self.parts, self.devices)


def part_of(rows: jax.Array, part: jax.Array | int, parts: int, devices: int) -> jax.Array:
    """Of a batch [B, ...] split over the devices, the rows of a part, [B / parts, ...]: some of every device's own."""
    each = rows.reshape(devices, parts, -1, *rows.shape[1:])
    return each[:, part].reshape(-1, *rows.shape[1:])
