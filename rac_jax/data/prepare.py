"""Check a data set and, with --out, pack it into ArrayRecord files that training reads quickly.

  python -m rac_jax.data.prepare places_lt --root=DIR               check: counts, missing and bad files
  python -m rac_jax.data.prepare places_lt --root=DIR --out=PACKED  check and pack

NAME is a value of config.data.name; the packed folder is then the --config.data.root of a run. Images are kept as they
are, encoded. After an interruption, the same command continues. The packed folder is also a TFDS data set
(tfds.builder_from_directory); TensorFlow is not needed.
"""

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import tensorflow_datasets as tfds
from tqdm import tqdm

from rac_jax import config, data, rules
from rac_jax.data import shards
from rac_jax.data.dataset import Dataset
from rac_jax.data.sets import inat, places
from rac_jax.data.sets.packed import MANIFEST, SETTINGS, VERSION, packed_name
from rac_jax.data.show import counts_table
from rac_jax.runtime import starting
from rac_jax.runtime.files import write_json, write_text

CHECKSUMS = {**places.SHA256, **inat.SHA256}
NAMED = 20  # bad files that are printed; all are in the report


def main(arguments: Sequence[str] | None = None) -> int:
    """0: all is well; 1: some images are missing or bad."""
    parser = argparse.ArgumentParser(
        "rac_jax.data.prepare", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("name", help=data.KNOWN)
    parser.add_argument("--root", default="", help="the folder with the images")
    parser.add_argument("--lists", default="", help="the folder with the list files; default: the root")
    parser.add_argument("--out", default="", help="the folder to pack into; default: only check")
    for name, value in _settings(config.default()).items():
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=type(value), default=value, help=f"as config.data.{name}; default: {value}")
    parser.add_argument("--skip-bad", action="store_true", help="pack without the images that are bad")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes")
    options = parser.parse_args(arguments)
    try:
        return _prepare(options)
    except (ValueError, OSError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _prepare(options: argparse.Namespace) -> int:
    settings = _config(options)
    rules.validate(settings, devices=1)
    dataset = data.load(settings)
    print(counts_table(dataset))
    _print_checksums(Path(options.lists or options.root))
    out = Path(options.out) if options.out else None
    bad = _go_through(dataset, out, options.workers)
    _print_bad(bad, out)
    if bad and not options.skip_bad:
        return 1
    if out:
        name = packed_name(options.name)
        _finish(dataset, out, name, _settings(settings), bad)
        usual = _settings(config.default())
        changed = {"name": name, "root": out} | {key: v for key, v in _settings(settings).items() if v != usual[key]}
        flags = " ".join(f"--config.data.{key}={value}" for key, value in changed.items())
        print(f"packed into {out}: train with {flags}")
    return 0


def _config(options: argparse.Namespace) -> Any:
    settings = config.default()
    settings.data.update(name=options.name, root=options.root, lists=options.lists)
    settings.data.update({name: getattr(options, name) for name in SETTINGS})
    return settings


def _settings(settings: Any) -> dict[str, Any]:
    """The fields that shape a data set."""
    return {name: settings.data[name] for name in SETTINGS}


def _go_through(dataset: Dataset, out: Path | None, workers: int) -> list[str]:
    """Decode every image once and, if there is an `out`, pack it. Returns what is bad."""
    jobs = [job for split in dataset.splits.values() for job in shards.plan(split, dataset, out)]
    todo = [job for job in jobs if not job.finished()]
    bad = {job: job.bad() for job in jobs if job not in todo}
    with (
        ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool,
        tqdm(total=sum(map(len, jobs)), initial=sum(map(len, bad)), desc="check", unit="img") as bar,
    ):
        running = {pool.submit(shards.run, job): job for job in todo}
        for done in as_completed(running):
            bad[running[done]] = done.result()
            bar.update(len(running[done]))
    return [line for job in jobs for line in bad[job]]


def _print_checksums(folder: Path) -> None:
    for name, known in CHECKSUMS.items():
        if (folder / name).is_file():
            same = hashlib.sha256((folder / name).read_bytes()).hexdigest() == known
            print(
                f"{name}: {'the' if same else 'not the'} checksum known here"
                + (" (others may be as good)" * (not same))
            )


def _print_bad(bad: list[str], out: Path | None) -> None:
    print(f"{len(bad)} images are missing or bad" if bad else "every image is there and can be decoded")
    for line in bad[:NAMED]:
        print(f"  {line}")
    if len(bad) > NAMED:
        print(f"  … and {len(bad) - NAMED} more")
    if bad and out:
        write_text(out / "bad_images.txt", "\n".join(bad) + "\n")
        print(f"all are named in {out / 'bad_images.txt'}; --skip-bad packs the others")


def _finish(dataset: Dataset, out: Path, name: str, settings: dict[str, Any], bad: list[str]) -> None:
    """Describe the shards to TFDS and to rac_jax.data.sets.packed."""
    infos, checksums = [], {}
    sizes: dict[str, int] = {}
    for split in dataset.splits.values():
        jobs = shards.plan(split, dataset, out)
        rows = [row for job in jobs for row in job.rows()]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        write_text(out / f"{split.name}.jsonl", lines)
        checksums[f"{split.name}.jsonl"] = hashlib.sha256(lines.encode()).hexdigest()
        sizes |= {job.file.name: job.file.stat().st_size for job in jobs}
        infos.append(shards.split_info(split.name, jobs, out))
    tfds.folder_dataset.write_metadata(
        data_dir=str(out),
        features=shards.features(dataset.class_names),
        split_infos=infos,
        filename_template=shards.template(out),
        check_data=False,
    )
    manifest = {
        "version": VERSION,
        "config_name": name,
        "name": dataset.name,
        "class_names": dataset.class_names,
        "class_texts": dataset.class_texts,
        "splits": list(dataset.splits),
        "held_out": dataset.held_out,
        "settings": settings,
        "sha256": checksums,
        "bytes": sizes,
        "left_out": len(bad),
    }
    write_json(out / MANIFEST, manifest)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print(starting.INTERRUPTED, file=sys.stderr)
        sys.exit(starting.REQUEUE)
