"""rac_jax from Python: `fit` and `load`, and the model that both return.

    import rac_jax

    model = rac_jax.fit("photos/")
    model.predict("new.jpg")
    model.add("more/", source="more")
    model.save("runs/mine")
    model = rac_jax.load("runs/mine")

Answers are dicts, as `python -m rac_jax.predict --json` prints them.
"""

import dataclasses
import hashlib
import shutil
import tempfile
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any, overload

import jax
import numpy as np
from absl import flags
from ml_collections import ConfigDict
from PIL import Image

from rac_jax import config as configs
from rac_jax import data, evaluate, predict, rules, train
from rac_jax.answering import Answer, Answering, neighbours
from rac_jax.api import fitting
from rac_jax.api.fitting import Labels, Pictures
from rac_jax.api.live import Live
from rac_jax.calibration import coverage as coverages
from rac_jax.calibration.coverage import LabelSets
from rac_jax.data import evaluation, record
from rac_jax.data.dataset import Dataset
from rac_jax.data.dataset import texts as class_texts
from rac_jax.data.decode import BadImage
from rac_jax.evaluate import IMAGES
from rac_jax.export import folder as export
from rac_jax.memory import build, index, manifest, rows, sources, thumbnails
from rac_jax.memory.manifest import BadMemory
from rac_jax.memory.view import MemoryView
from rac_jax.predict import Picture
from rac_jax.run import Run
from rac_jax.runtime import commands, compilation
from rac_jax.runtime.interruption import Interrupted

TAUGHT = "taught"  # the source of images that are added one by one
HERE = ("weights_dir", "compiled", "mesh.data", "mesh.fsdp")  # fields that `fit` hands on to `load`


def load(workdir: str | Path, *, step: int | None = None, **fields: Any) -> "Model":
    """The trained run in a folder, from `fit`, the command line or an export.

    Args:
      workdir: the run's folder. It is not written to, except by edits of the memory.
      step: the checkpoint; None for the newest.
      **fields: config fields that may differ on this machine, as weights_dir="…" or mesh__data=1.
    """
    workdir = Path(workdir)
    config = predict.here(workdir)
    fitting.set_fields(config, fields)
    _start(config)
    run, params, stats, step = evaluate.restore(config, workdir, step)
    return Model(run, params, stats, step=step, workdir=workdir)


def fit(source: Pictures, labels: Labels | None = None, *, workdir: str | Path | None = None, **fields: Any) -> "Model":
    """Make a model of your images: encode them once, then train for seconds.

    Unless the source has a test split of its own, a share of the images (data__test_share=0.2) is held out, for
    `Model.evaluate`.

    Args:
      source: a folder with a folder of images per class, a table (.csv, .jsonl, .parquet) with the columns path and
        label, the name of a known data set (as config.data.name), or images together with `labels`.
      labels: a class for each image, if images are given.
      workdir: the run's folder. Without one it is temporary: use `Model.save` to keep the run.
      **fields: any config field that `source` leaves open: memory__k=20, or memory={"k": 20}, or **{"memory.k": 20}.
    """
    config = fitting.default_config()
    given = fitting.set_fields(config, fields)
    fitting.check(config, given, source, labels)
    folder = Path(workdir or tempfile.mkdtemp(prefix="rac_jax_")).resolve()
    try:
        config.data.name, root = fitting.named(source, labels, folder)
        config.data.root = root or config.data.root
        _start(config)
        fitting.adapt(config, given)
        train.train(config, folder, evaluated=False)
        model = load(folder, **{name: configs.field(config, name) for name in HERE})
    except BaseException as error:
        if workdir is None:
            shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, Interrupted):
            raise KeyboardInterrupt from None
        raise
    if workdir is None:
        weakref.finalize(model, shutil.rmtree, folder, ignore_errors=True)
    return model


def _start(config: ConfigDict) -> None:
    """What the command line does before it opens a run."""
    commands.mute_orbax()
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()  # Grain's workers read absl flags
    rules.validate(config, devices=jax.device_count())
    compilation.keep_programs(config, also_small=True)


class Model:
    """A trained run that answers. An edit of the memory is on the disk, and in the next answer, when it returns."""

    def __init__(self, run: Run, params: Any, stats: Any, *, step: int, workdir: Path):
        self.step = step
        self.workdir = workdir
        config = run.config.copy_and_resolve_references()
        if config.memory.index != "device":
            config.memory.lookup = "pipelined"  # writes no files, and its programs are cached
        self.live = Live(Answering.of(dataclasses.replace(run, config=config), params, stats))

    @property
    def _answering(self) -> Answering:
        return self.live.answering

    @property
    def _run(self) -> Run:
        return self._answering.run

    def __repr__(self) -> str:
        rows = f", {self.memory.rows} images in the memory" if self._run.retriever else ""
        return f"<rac_jax.Model {self.workdir}: {len(self.classes)} classes{rows}>"

    @property
    def config(self) -> ConfigDict:
        """All settings of the run; a copy."""
        return self._run.config.copy_and_resolve_references()

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of all classes that an answer may have: those of training, then those of the memory alone."""
        return self._run.classes.names

    @property
    def trained_classes(self) -> tuple[str, ...]:
        """The names of the classes of training."""
        return self.classes[: self._run.classes.trained]

    @overload
    def predict(self, images: Image.Image, *, coverage: float | None = None) -> Answer: ...

    @overload
    def predict(self, images: str | Path | np.ndarray | jax.Array, *, coverage: float | None = None) -> Any: ...

    @overload
    def predict(self, images: Iterable[Picture], *, coverage: float | None = None) -> list[Answer]: ...

    def predict(self, images: Picture | Iterable[Picture], *, coverage: float | None = None) -> Any:
        """Classify one image, or many.

        Args:
          images: a path, a picture of Pillow or an array [H, W, 3] (of numpy, jax or another library); or a folder, an
            array [N, H, W, 3], or any iterable of images, which is read in batches of config.eval.batch_size.
          coverage: between 0 and 1; answers then have `labels`, a set that holds the true label this often.

        Returns:
          For one image a dict as `python -m rac_jax.predict --json` prints it: label, probability, voices, neighbours.
          For many, a list of them; an unusable image has an `error` in place of these.
        """
        several, single = predict.sorted_out(images)
        sets = None if coverage is None else self.sets(coverage)
        answers = list(predict.answers(self._answering, several, sets))
        if not single:
            return answers
        if "error" in answers[0]:
            raise BadImage(answers[0]["error"])
        return answers[0]

    def sets(self, coverage: float) -> LabelSets:
        """What decides which labels are in the sets of `predict`."""
        return coverages.require(self.workdir, self.step, self._run.memory_record()["memory"]).at(coverage)

    def search(self, image: Picture, k: int = 10) -> list[Answer]:
        """The `k` images of the memory that are nearest to an image: label, text, similarity, source, image, row."""
        retriever, answering = self._retriever(), self._answering
        memory, config = retriever.memory, answering.run.config
        pixels = predict.read(image, config.data.image_size)
        keys = answering.keys([data.eval_transform(config)(pixels, np.random.default_rng(0))])
        k = min(k, memory.enabled)
        rows, near = index.search(memory.index, keys, k, max(retriever.lookup.ef_search, 4 * k), memory.allowed())
        found = neighbours(memory, rows[0], near[0], None)
        return [{name: value for name, value in row.items() if name != "supports"} for row in found]

    def evaluate(self, on: Pictures | None = None, labels: Labels | None = None) -> dict[str, Any]:
        """The accuracy of each voice, by group of classes: {"rac": {"all": 0.9, "few": 0.8, …}, …}.

        If the run has sets of labels, also how often they hold the true one, and how many labels they have on average:
        {"coverage": {"0.9": {"all": {"covered": 0.91, "labels": 1.4}, "few": …}, …}}.

        Args:
          on: a split of the run's own data ("test", the default), a folder of classes, a table, or images.
          labels: a class for each image, if images are given.
        """
        split = self._run.config.eval.split if on is None else str(on)
        if on is None and split == "train":
            raise ValueError("no images were held out for evaluation: name a folder, a table, or images with labels")
        trained_on = record.read(self.workdir)
        if on is None or (trained_on and split in trained_on.splits and not Path(split).exists()):
            assert trained_on is not None
            dataset = evaluation.load(self._run.config, split, trained_on)
            return self._evaluated(dataset, split)
        with tempfile.TemporaryDirectory() as folder:
            dataset = self._read(on, labels, Path(folder) / "images")
            return self._evaluated(dataset, "test")

    def _evaluated(self, dataset: Dataset, split: str) -> dict[str, Any]:
        run = self._run.with_dataset(dataset)
        sets = evaluate.set_counts(run, self.workdir, self.step)
        counts, _ = evaluate.answers(run, self._answering.params, self._answering.stats, split, sets)
        return evaluate.accuracies(run, counts) | ({"coverage": evaluate.covered(run, sets)} if sets else {})

    def _read(self, what: Pictures, labels: Labels | None, folder: Path) -> Dataset:
        """A folder, a table or images with labels as the split `test` of a data set."""
        content = self._content(what, labels, folder, "test")
        assert content.split is not None
        return Dataset(content.origin, content.class_names, class_texts(content.class_names), {"test": content.split})

    def _content(self, what: Pictures, labels: Labels | None, folder: Path, split: str) -> sources.Content:
        """What a folder, a table or images with labels bring; images are written to `folder`."""
        if labels is not None:
            what = fitting.write_images(what, labels, folder)
        if not isinstance(what, str | Path):
            raise ValueError("images need labels, one for each")
        path = Path(what).expanduser()
        kind = "folder" if path.is_dir() else "table"
        if kind == "table" and path.suffix.lower() not in fitting.TABLES:
            raise FileNotFoundError(f"{path} is neither a folder nor a table ({', '.join(fitting.TABLES)})")
        return sources.read(self.config, f"{kind}:{path.resolve()}", root="", split=split, classes="", texts="")

    def add(self, what: Pictures, labels: Labels | None = None, *, source: str | None = None) -> None:
        """Add images to the memory, as a source of this name; classes may be new.

        Args:
          what: a folder of classes, a table, or images. Images are copied into the run's folder.
          labels: a class for each image, if images are given.
          source: a name for them; by default that of the folder or table.
        """
        if source is None:
            source = Path(what).resolve().stem if isinstance(what, str | Path) and labels is None else "added"
        with self.live.editing:
            self._add(what, labels, str(source))
            self.live.reopen()

    def _add(self, what: Pictures, labels: Labels | None, source: str) -> None:
        run, memory = self._run, self._retriever().memory
        if any(s.name == source and s.state != manifest.REMOVED for s in memory.manifest.sources):
            raise BadMemory(f"there is a source {source!r} already; choose another name, or remove it first")
        folder = self._new_folder(source)
        try:
            content = self._content(what, labels, folder, "train")
            build.add(
                self.config,
                memory.recipe,
                source,
                content,
                self._retriever().encoder,
                folder=memory.folder,
                mesh=run.mesh,
            )
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def _new_folder(self, source: str) -> Path:
        """Where the images of a source are written."""
        name = "".join(c if c.isalnum() or c in "-_" else "_" for c in source)
        taken = {path.name for path in (self.workdir / IMAGES).glob("*")}
        free = next(n for n in (name, *(f"{name}_{i}" for i in range(2, len(taken) + 3))) if n not in taken)
        return self.workdir / IMAGES / free

    def teach(self, image: Picture, label: Any = None, *, text: str = "", source: str | None = None) -> int:
        """Add one image to the memory, with a label, a text or both, and keep a thumbnail of it. Returns its row.

        The source is begun with its first row; one that was added as a whole takes no rows. By default it is "taught",
        or "taught 2" if a source of that name was added as a whole.
        """
        label = None if label is None else str(label) or None
        if label is None and not text:
            raise ValueError("a row needs a label or a text")
        config = self._run.config
        shown = data.plain_transform(config)(predict.read(image, config.data.image_size), np.random.default_rng(0))
        row = rows.Row(
            key=self._answering.keys([shown])[0],
            text=str(text or class_texts([label or ""])[0]),
            label=label,
            image=hashlib.sha256(shown.tobytes()).hexdigest()[:24],
            jpeg=thumbnails.encode(shown, max(config.memory.thumbnails, thumbnails.SIDE)),
        )
        with self.live.edited() as editor:
            name = rows.free_name(editor.manifest, TAUGHT) if source is None else str(source)
            return rows.add(editor, name, row)

    def forget(self, row: int) -> None:
        """Remove one row from the memory. It stays on the disk until `python -m rac_jax.memory compact`."""
        before = self._retriever().memory.manifest.keys
        with self.live.edited() as editor:
            if editor.manifest.keys != before:
                raise BadMemory("the memory was compacted meanwhile, and its rows have other numbers")
            rows.remove(editor, row)

    def disable(self, source: str) -> None:
        """Hide a source: its images are no neighbours any more. `enable` shows it again."""
        self._set_state(source, manifest.DISABLED)

    def enable(self, source: str) -> None:
        """Show a source that was hidden."""
        self._set_state(source, manifest.ENABLED)

    def remove(self, source: str) -> None:
        """Remove a source. Its rows stay on the disk until `python -m rac_jax.memory compact`."""
        self._set_state(source, manifest.REMOVED)

    def _set_state(self, source: str, state: str) -> None:
        with self.live.edited() as editor:
            enabled = [s for s in editor.manifest.sources if s.state == manifest.ENABLED and s.present]
            if state != manifest.ENABLED and all(s.name == source for s in enabled):
                raise BadMemory(f"{source!r} is the only source that is enabled; without it nothing can be answered")
            editor.set_state(source, state)

    def _retriever(self) -> Any:
        if self._run.retriever is None:
            raise ValueError(f"the voices of {self.workdir} (config.model.voices) use no memory")
        return self._run.retriever

    @property
    def memory(self) -> MemoryView:
        """What the memory holds now."""
        return MemoryView(self._retriever().memory)

    def save(self, folder: str | Path, *, with_encoder: bool = False) -> None:
        """Copy the run to a new folder, which `load` opens on any machine; see rac_jax/export."""
        memory = self._run.retriever.memory.folder if self._run.retriever else None
        here: dict[str, Any] = {"memory": memory, "weights_dir": self.config.weights_dir}
        export.write(self.workdir, Path(folder), with_encoder=with_encoder, step=self.step, **here)
