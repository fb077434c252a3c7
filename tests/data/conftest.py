"""The real lists and images that some tests read, where they are at hand."""

import os
from pathlib import Path

import pytest


@pytest.fixture
def real_data() -> Path:
    """The folder with places_lt/, inat18/ and cifar100_lt.zip: $RAC_JAX_TEST_DATA, or one beside the project."""
    folder = Path(os.environ.get("RAC_JAX_TEST_DATA", Path(__file__).parents[3] / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip("the real lists are not here; RAC_JAX_TEST_DATA may name their folder")
    return folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A test neither reads nor fills the user's cache."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder
