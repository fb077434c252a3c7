"""Single rows that are added and removed, against a model of the memory in plain Python."""

import dataclasses
import os
import shutil
from collections import Counter

import numpy as np
import pytest

from rac_jax import config as configs
from rac_jax.memory import check, edit, index, manifest, rows, store
from rac_jax.memory.manifest import BadMemory
from rac_jax.retrieval import retriever
from tests.memory.conftest import RECIPE, VOTE, add, make, votes

WIDTH = 8
ODDS = (0.35, 0.25, 0.15, 0.15, 0.1)  # of the edits in a random sequence


def key(number):
    return np.random.default_rng(number).normal(size=WIDTH).astype(np.float32)


def teach(folder, number, label="x", source="taught"):
    row = rows.Row(key(number), f"text {label}", label, f"image{number}", f"jpeg{number}".encode())
    with edit.editing(folder) as editor:
        return rows.add(editor, source, row)


def forget(folder, number):
    with edit.editing(folder) as editor:
        rows.remove(editor, number)


def nearest(memory, query, k=3):
    found, _ = index.search(memory.index, query[None], k, 64, memory.allowed())
    return [memory.images[row] for row in found[0] if row >= 0]


@pytest.fixture
def folder(memory):
    return memory.folder


def test_a_row_is_added_found_counted_and_removed(folder):
    number = teach(folder, 1)
    memory = store.read(folder)
    assert (number, len(memory), memory.enabled) == (40, 41, 41)
    assert nearest(memory, key(1), 1) == ["image1"] and memory.thumbnail(40) == b"jpeg1"
    assert memory.class_names == ("x",) and memory.class_counts().tolist() == [1]
    np.testing.assert_allclose(memory.class_sums()[0], index.unit(key(1)[None])[0], rtol=1e-6)
    assert teach(folder, 2, None) == 41
    assert store.read(folder).label_of[41] == -1 and store.read(folder).class_counts().tolist() == [1]
    before = store.read(folder)
    forget(folder, 40)
    after = store.read(folder)
    assert "image1" not in nearest(after, key(1), 41) and nearest(after, key(2), 1) == ["image2"]
    assert after.class_counts().tolist() == [0] and after.enabled == 41 and not after.holds(40) and after.holds(41)
    assert nearest(before, key(1), 1) == ["image1"]  # an open memory is a snapshot
    assert after.fingerprint != before.fingerprint and not check.problems(folder)
    with pytest.raises(BadMemory, match="there is no row 40"):
        forget(folder, 40)


def test_a_row_of_any_source_can_be_removed_and_ids_stay(folder):
    before = store.read(folder)
    forget(folder, 7)
    after = store.read(folder)
    assert after.enabled == 39 and not after.allowed()[7] and after.rows_of("f") == slice(0, 40)
    assert after.fingerprint != before.fingerprint
    with edit.editing(folder) as editor:
        assert editor.compact() == 0  # the ids of its images are places in the source
    assert store.read(folder).enabled == 39 and not check.problems(folder)


def test_rows_are_refused_where_they_do_not_belong(folder):
    with pytest.raises(BadMemory, match=r"source 'train' was added as a whole \(test\); add rows to another source"):
        teach(folder, 1, source="train")
    teach(folder, 1)
    with pytest.raises(BadMemory, match="this image is in source 'taught' already, with this label, as row 40"):
        teach(folder, 1)
    assert teach(folder, 1, "y") == 41
    for name in ("", ".", ".."):  # an address in the API cannot end in them
        with pytest.raises(BadMemory, match=f"a source cannot be named {name!r}"):
            teach(folder, 3, source=name)
    with edit.editing(folder) as editor:
        editor.set_state("taught", manifest.DISABLED)
    with pytest.raises(BadMemory, match="source 'taught' is disabled"):
        teach(folder, 2)
    version = manifest.read(folder).version
    with pytest.raises(edit.NotFinite), edit.editing(folder) as editor:
        rows.add(editor, "other", rows.Row(np.full(WIDTH, np.nan), "t", "x", "i", b""))
    assert manifest.read(folder).version == version and not check.problems(folder)


def test_rows_without_a_label_are_told_apart_by_their_texts(folder):
    def add(text):
        with edit.editing(folder) as editor:
            return rows.add(editor, "taught", rows.Row(key(1), text, None, "image1", b"jpeg"))

    assert [add("a"), add("b")] == [40, 41]
    with pytest.raises(BadMemory, match="this image is in source 'taught' already, with this text, as row 40"):
        add("a")


def test_what_could_not_be_read_again_is_not_written(folder):
    before = manifest.read(folder)
    with pytest.raises(BadMemory, match="its values do not fit together"):
        teach(folder, 1, label=8)
    with pytest.raises(BadMemory, match="its values do not fit together"):
        teach(folder, 1, source=8)
    assert manifest.read(folder) == before and not check.problems(folder)
    assert teach(folder, 1) == 40


def test_the_last_row_stays(tmp_path):
    make(tmp_path / "m", np.eye(1, WIDTH, dtype=np.float32))
    with pytest.raises(BadMemory, match="row 0 is the only one that is enabled"):
        forget(tmp_path / "m", 0)


def test_rows_of_a_source_that_is_not_the_last_go_to_the_end(folder):
    for number in (1, 2, 3):
        teach(folder, number)
    forget(folder, 41)
    add(folder, "more", np.stack([key(10), key(11)]))
    assert teach(folder, 4) == 47  # 40 rows, 3 that are left behind, 2 of `more`, then image1, image3 and image4
    memory = store.read(folder)
    assert teach(folder, 5) == 48 and teach(folder, 6) == 49
    add(folder, "further", key(12)[None])
    assert teach(folder, 7) == 51  # a part of its own, since the five rows before are many
    parts = [(s.name, s.rows) for s in manifest.read(folder).sources if s.state == "enabled"]
    assert parts == [("train", 40), ("more", 2), ("taught", 5), ("further", 1), ("taught", 1)]
    with edit.editing(folder) as editor:
        editor.set_state("taught", manifest.DISABLED)
    assert store.read(folder).enabled == 43 and not check.problems(folder)
    with edit.editing(folder) as editor:
        editor.set_state("taught", manifest.ENABLED)
        for row in (48, 49, 51):
            rows.remove(editor, row)
        editor.set_state("further", manifest.REMOVED)
    assert [source.state for source in memory.manifest.sources] == ["enabled", "removed", "enabled", "enabled"]
    assert [memory.images[row] for row in (45, 46, 47)] == ["image1", "image3", "image4"]
    assert [memory.thumbnail(row) for row in (45, 47)] == [b"jpeg1", b"jpeg4"]
    assert memory.class_counts().tolist() == [3] and not memory.holds(40) and memory.enabled == 45
    assert not check.problems(folder)
    with edit.editing(folder) as editor:
        assert editor.compact() == 7
    memory = store.read(folder)
    assert len(memory) == memory.enabled == 45 and nearest(memory, key(3), 1) == ["image3"]


def test_two_sources_that_grow_by_turns_have_few_parts_and_compacting_deletes_what_was_removed(folder):
    for number in range(20):
        teach(folder, number)
        teach(folder, number, "z", source="second")
    found = manifest.read(folder)
    assert found.rows_by_source(manifest.ENABLED) == {"train": 40, "taught": 20, "second": 20}
    assert len(found.sources) <= 15
    assert found.rows - 80 < 20 * 2 * 5  # rows that are left behind
    memory = store.read(folder)
    for row in [row for row in range(len(memory)) if memory.holds(row) and memory.images[row] in ("image3", "image4")]:
        forget(folder, row)
    with edit.editing(folder) as editor:
        assert editor.compact() > 4
    memory = store.read(folder)
    assert len(memory) == memory.enabled == 76 and memory.manifest.tail == 0
    kept = {f"jpeg{number}".encode() for number in range(20)} - {b"jpeg3", b"jpeg4"}
    assert {memory.thumbnail(row) for row in range(40, 76)} == kept
    assert memory.class_counts().tolist() == [18, 18] and not check.problems(folder)


def test_random_edits_agree_with_a_plain_model(folder, keys):
    random, alive, memory = np.random.default_rng(0), {}, None
    for number in range(40):
        if alive and random.random() < 0.4:
            gone = alive.pop(random.choice(list(alive)))
            forget(folder, gone)
        else:
            alive[number] = teach(folder, number, f"class {number % 3}")
        memory = store.read(folder, memory)
        taught = {memory.images[row] for row in range(40, len(memory)) if memory.holds(row)}
        assert taught == {f"image{n}" for n in alive} and memory.enabled == 40 + len(alive)
        counts = {name: int(c) for name, c in zip(memory.class_names, memory.class_counts(), strict=True)}
        assert counts == {name: sum(f"class {n % 3}" == name for n in alive) for name in counts}
    assert not check.problems(folder)
    assert all(nearest(memory, key(number), 1) == [f"image{number}"] for number in alive)


def test_edits_of_rows_and_of_sources_in_any_order_leave_what_a_new_memory_would_have(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)  # thousands of them, and nothing is switched off here
    random = np.random.default_rng(3)
    alive = {f"train{i}": ("train", None, store.read(folder).keys[i]) for i in range(40)}  # image: source, label, key
    disabled, gone = set(), set()
    for number in range(150):
        sources = sorted({source for source, _, _ in alive.values()})
        name, choice = str(random.choice(sources)), random.choice(["teach", "forget", "add", "state", "remove"], p=ODDS)
        if choice == "teach" and (target := f"taught {number % 2}") not in disabled:
            label = f"class {number % 3}"
            teach(folder, number, label, target)
            alive[f"image{number}"] = target, label, index.unit(key(number)[None])[0]
        elif choice == "forget" and len(alive) > 1:
            memory, image = store.read(folder), str(random.choice(sorted(alive)))
            (row,) = (row for row in range(len(memory)) if memory.images[row] == image and memory.holds(row))
            if alive[image][0] not in disabled and sum(one[0] not in disabled for one in alive.values()) > 1:
                forget(folder, row)
                gone.add(image)
                del alive[image]
        elif choice == "add":
            keys, labels = random.normal(size=(5, WIDTH)).astype(np.float32), np.arange(5, dtype=np.int32) % 3 - 1
            add(folder, f"source{number}_", keys, classes=("class 0", "class 1"), labels=labels)
            for i, (one, label) in enumerate(zip(index.unit(keys), labels, strict=True)):
                alive[f"source{number}_{i}"] = f"source{number}_", f"class {label}" if label >= 0 else None, one
        elif len([source for source in sources if source not in disabled]) > 1:
            state = manifest.REMOVED if choice == "remove" else random.choice([manifest.DISABLED, manifest.ENABLED])
            with edit.editing(folder) as editor:
                editor.set_state(name, state)
                if number % 7 == 0:
                    editor.compact()
            disabled = disabled - {name} if state != manifest.DISABLED else disabled | {name}
            if state == manifest.REMOVED:
                gone |= {image for image, (source, _, _) in alive.items() if source == name}
                alive = {image: row for image, row in alive.items() if row[0] != name}
        if number % 5 == 0:
            speaking = {image: row for image, row in alive.items() if row[0] not in disabled}
            agree(store.read(folder), speaking, gone, random.normal(size=WIDTH).astype(np.float32))
    assert len(gone) > 60 and not check.problems(folder)


def agree(memory, speaking, gone, query):
    """The memory has these rows and no others: counts, sums and nearest rows are those of the rows alone."""
    labels = [label for _, label, _ in speaking.values()]
    counts = dict(zip(memory.class_names, memory.class_counts().tolist(), strict=True))
    assert {name: count for name, count in counts.items() if count} == dict(Counter(filter(None, labels)))
    for name, total in zip(memory.class_names, memory.class_sums(), strict=True):
        rows = [one for _, label, one in speaking.values() if label == name]
        np.testing.assert_allclose(total, np.sum(rows or np.zeros((1, WIDTH)), axis=0), atol=1e-6)
    nearness = {image: float(one @ index.unit(query[None])[0]) for image, (_, _, one) in speaking.items()}
    found = nearest(memory, query, len(memory))
    assert not gone & set(found)
    assert found[:5] == sorted(nearness, key=lambda image: -nearness[image])[:5]
    expected = {name: 0.0 for _, name, _ in speaking.values() if name is not None}
    for image in sorted(nearness, key=lambda image: -nearness[image])[:9]:
        if (name := speaking[image][1]) is not None:
            expected[name] += np.exp(nearness[image] / VOTE["temperature"]) / labels.count(name)
    total = sum(expected.values()) or 1.0
    said = votes(memory, *index.search(memory.index, query[None], 9, 64, memory.allowed()))
    assert {name: share[0] for name, share in said.items()} == {
        name: pytest.approx(share / total, abs=1e-4) for name, share in expected.items()
    }


def test_the_index_is_extended_when_the_tail_is_long(folder, monkeypatch):
    monkeypatch.setattr(rows, "longest", lambda indexed: 3)
    tails = []
    for number in range(6):
        teach(folder, number)
        tails.append(manifest.read(folder).tail)
    assert tails == [1, 2, 3, 0, 1, 2]
    memory = store.read(folder)
    assert all(nearest(memory, key(number), 1) == [f"image{number}"] for number in range(6))
    add(folder, "more", np.stack([key(10), key(11)]))
    assert manifest.read(folder).tail == 0 and nearest(store.read(folder), key(10), 1) == ["more0"]


def test_a_source_whose_rows_were_mostly_removed_is_written_anew(folder, monkeypatch):
    monkeypatch.setattr(rows, "FEW", 4)
    for number in range(6):
        forget(folder, teach(folder, number))
    sizes = [source.rows for source in manifest.read(folder).sources]
    assert sizes == [40, 5, 1] and not check.problems(folder)
    assert manifest.read(folder).sources[1].is_gap and len(list(folder.glob("thumbnails-*"))) == 1


def test_the_first_row_makes_a_memory(tmp_path):
    edit.create(tmp_path / "m", {**RECIPE, "index": {"kind": "flat", "metric": "l2"}}, width=WIDTH)
    assert teach(tmp_path / "m", 1) == 0 and nearest(store.read(tmp_path / "m"), key(1)) == ["image1"]
    assert teach(tmp_path / "m", 2) == 1 and nearest(store.read(tmp_path / "m"), key(2)) == ["image2", "image1"]


def test_a_manifest_with_impossible_rows_is_refused(folder):
    teach(folder, 1)
    found = manifest.read(folder)
    *others, last = found.sources
    for removed in ((5,), (0, 0), (-1,)):
        wrong = dataclasses.replace(found, sources=(*others, dataclasses.replace(last, removed=removed)))
        manifest.write(folder, wrong)
        with pytest.raises(BadMemory, match="its values do not fit together"):
            manifest.read(folder)


def test_neighbours_that_were_kept_before_a_row_was_removed_are_not_those_of_the_compacted_memory(folder):
    def recipe():
        memory = store.read(folder)
        return retriever.recipe(configs.default(), memory), memory.fingerprint

    for number in (1, 2, 3):
        teach(folder, number)
    taught, fingerprint = recipe()
    forget(folder, 41)
    removed, without = recipe()
    with edit.editing(folder) as editor:
        assert editor.compact() == 1
    compacted, still = recipe()
    assert taught != removed != compacted != taught  # row 42 has become row 41
    assert fingerprint != without == still  # the same rows speak
    teach(folder, 4)
    other, _ = recipe()
    forget(folder, 41)
    with edit.editing(folder) as editor:
        assert editor.compact() == 1
    assert recipe()[0] not in (taught, removed, compacted, other)


def test_a_part_that_takes_over_rows_is_another_one_after_a_row_was_removed(folder, tmp_path):
    for number in (1, 2):
        teach(folder, number)
    add(folder, "more", key(10)[None])
    shutil.copytree(folder, tmp_path / "copy")
    forget(tmp_path / "copy", 40)
    for place in (folder, tmp_path / "copy"):
        teach(place, 3)
    assert store.read(folder).fingerprint != store.read(tmp_path / "copy").fingerprint
