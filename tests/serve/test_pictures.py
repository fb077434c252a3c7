"""Images to try."""

from types import SimpleNamespace

from rac_jax import config as configs
from rac_jax.serve import pictures


class WithoutMemory:
    """A model whose voices use no memory, and whose data are not here."""

    def __init__(self, workdir):
        self.workdir, self.config = workdir, configs.default()
        self.live = SimpleNamespace(answering=SimpleNamespace(run=SimpleNamespace(retriever=None)))

    @property
    def memory(self):
        raise ValueError("the voices use no memory")


def test_there_are_none_without_memory_and_data(tmp_path):
    examples = pictures.Examples(WithoutMemory(tmp_path))
    assert examples.some() == {"split": "", "images": 0, "some": []}
    assert examples.image(0) is None and examples.image(0, small=True) is None
