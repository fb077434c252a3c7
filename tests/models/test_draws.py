import jax
import numpy as np
import pytest

from rac_jax.models.draws import Draws, part_of


@pytest.mark.parametrize("devices, parts", [(1, 4), (2, 2), (4, 3)])
def test_the_parts_of_a_batch_draw_what_the_whole_batch_does(devices, parts):
    key = jax.random.key(3)
    whole = Draws(key).fold_in(5).split()[1].bernoulli(0.5, 48)
    places = np.arange(48)
    for part in range(parts):
        draws = Draws(key, part, parts, devices).fold_in(5).split()[1]
        mine = part_of(places, part, parts, devices)
        np.testing.assert_array_equal(draws.bernoulli(0.5, 48 // parts), whole[mine])
    every = np.concatenate([part_of(places, part, parts, devices) for part in range(parts)])
    assert sorted(every) == list(range(48))
    of_first_device = [i for i in part_of(places, 0, parts, devices) if i < 48 // devices]
    assert len(of_first_device) == 48 // devices // parts  # no row leaves its device
