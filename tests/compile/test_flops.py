import jax
import jax.numpy as jnp
import pytest

from rac_jax.compile import flops


def counted(function, *shapes):
    arguments = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes]
    return flops.count(jax.make_jaxpr(function)(*arguments))


def test_a_product_by_dtype():
    x, w = ((3, 5), jnp.bfloat16), ((5, 7), jnp.bfloat16)
    assert counted(lambda x, w: x @ w, x, w) == {"bfloat16": 2 * 3 * 5 * 7}
    batched = ((4, 3, 5), jnp.float32), ((4, 5, 7), jnp.float32)
    assert counted(jnp.matmul, *batched) == {"float32": 2 * 4 * 3 * 5 * 7}


def test_a_scan_counts_every_turn_and_a_cond_its_longer_branch():
    def repeated(x, w):
        return jax.lax.scan(lambda carry, _: (carry @ w, None), x, length=6)[0]

    assert counted(repeated, ((2, 2), jnp.float32), ((2, 2), jnp.float32)) == {"float32": 6 * 16}

    def either(x, w):
        return jax.lax.cond(x[0, 0] > 0, lambda: x @ w @ w, lambda: x @ w)

    assert counted(either, ((2, 2), jnp.float32), ((2, 2), jnp.float32)) == {"float32": 2 * 16}


def test_what_shard_map_does_on_each_device_counts_for_all():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    split = jax.P("data")
    local = jax.shard_map(lambda x, w: x @ w, mesh=mesh, in_specs=(split, jax.P()), out_specs=split)
    assert counted(local, ((16, 5), jnp.float32), ((5, 7), jnp.float32)) == {"float32": 2 * 16 * 5 * 7}


@pytest.mark.parametrize("groups", [1, 4])
def test_convolutions_and_their_gradients_are_about_what_xla_counts(groups):
    def loss(x, w):
        y = jax.lax.conv_general_dilated(
            x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=groups
        )
        return (y * y).sum()

    shapes = ((2, 32, 32, 8), jnp.float32), ((3, 3, 8 // groups, 16), jnp.float32)
    arguments = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes]
    xla = jax.jit(loss).lower(*arguments).compile().cost_analysis()["flops"]
    assert counted(loss, *shapes)["float32"] == pytest.approx(xla, rel=0.1)
    assert counted(loss, *shapes)["float32"] == 2 * (2 * 16 * 16 * 16) * (3 * 3 * 8 // groups)
    ours = counted(jax.grad(loss, argnums=(0, 1)), *shapes)["float32"]
    assert ours == pytest.approx(3 * counted(loss, *shapes)["float32"], rel=0.1)
