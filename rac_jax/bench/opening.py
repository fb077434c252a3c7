"""How long a memory takes to open, and its texts to be ready for T."""

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from rac_jax.bench import made
from rac_jax.bench.race import median, race
from rac_jax.memory import columns, edit, manifest, store
from rac_jax.retrieval import texts, tokenizers
from rac_jax.retrieval.snippets import Snippets

WIDTH = 16  # numbers in a key: nothing of a memory is read as a whole
WORDS = ("a photo of the", "old", "small red", "bird", "boat house", "on", "near", "under", "water", "street", "tree")


def print_opening(rows: int, rounds: int, folder: Path) -> None:
    """A memory of many short keys in two sources, with exact search."""
    classes = pa.array(map(str, range(made.TEXTS)), pa.large_string())
    for name, number in (("most", rows * 9 // 10), ("some", rows // 10)):
        labels = pa.array(np.arange(number, dtype=np.int32) % made.TEXTS)
        _add(folder, name, number, pa.DictionaryArray.from_arrays(labels, classes))

    def hide_and_show() -> None:
        with edit.editing(folder) as editor:
            editor.set_state("some", manifest.DISABLED)
            editor.set_state("some", manifest.ENABLED)

    times = race({"open": lambda: store.read(folder), "hide": hide_and_show}, rounds, "opening")
    print(f"\n{rows:,} made keys × {WIDTH} with texts and references, in two sources")
    print(f"  opened in {median(times['open']):.2f} s; a source hidden and shown in {median(times['hide']):.3f} s")


def print_captions(rows: int, folder: Path) -> None:
    """A memory whose rows have captions of their own: its texts at the first start and at later ones."""
    _add(folder, "captioned", rows, pa.array(_captions(rows), pa.large_string()))
    tokenizer = tokenizers.clip()
    memory = store.read(folder)
    seconds = []
    for _ in range(2):
        started = time.perf_counter()
        kept = texts.tokenised(memory, tokenizer, "snippet")
        seconds.append(time.perf_counter() - started)
    some = np.linspace(0, rows - 1, 1000).astype(int)
    plain = Snippets.tokenise([memory.texts[number] for number in some], tokenizer)
    same = np.array_equal(kept.join(some[:, None]), plain.join(np.arange(len(some))[:, None]))
    print(f"\n{rows:,} rows with captions of their own, {len(kept.tokens) / rows:.1f} tokens each")
    print(
        f"  tokenised in {seconds[0]:.1f} s at the first start, read in {seconds[1]:.2f} s at later ones; same: {same}"
    )


def _captions(rows: int) -> Iterator[str]:
    random = np.random.default_rng(0)
    for number in range(rows):
        yield " ".join(WORDS[i] for i in random.integers(len(WORDS), size=8)) + f" {number}"


def _add(folder: Path, name: str, rows: int, captions: pa.Array) -> None:
    recipe = {"keys": "float16", "index": {"kind": "flat", "metric": "cosine"}}
    edit.create(folder, recipe, width=WIDTH)
    references = pa.array(np.arange(rows, dtype=np.int32)).cast(pa.large_string())
    with edit.editing(folder) as editor:
        editor.start(name, rows=rows, fingerprint=name, origin="bench")
        for start in range(0, rows, 2**20):
            some = np.random.default_rng(start).normal(size=(min(2**20, rows - start), WIDTH))
            editor.append(some.astype(np.float32))
        editor.finish(columns.make(captions, references))
