"""RAC: the voices that answer, and the fusion of their logits.

    base        B sees the image
    text        T reads the texts of the neighbours
    vote        the labels of the neighbours, weighted by similarity and corrected for class frequency
    prototype   the mean key of each class in the memory, with a learned correction

The paper's RAC is base and text, fused by unit norms (fusion="paper").
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from flax import nnx

from rac_jax.models import initialisers, voices
from rac_jax.models.preprocessing import Preprocessing
from rac_jax.models.voices import Knowledge, LeftOut, Neighbours, unit

VOICES = ("base", "text", "vote", "prototype")
FUSED = "rac"
PAPER = "paper"  # base and text in the paper's fusion, shown beside a sum that has them both

Logits = dict[str, jax.Array]  # by voice, and FUSED where there are several; [B, L] float32

COSINE_SCALE = 30.0  # of a cosine head's logits, unless the config has another one
SMALLEST_WEIGHT = 1e-9  # of a mean


class ImageEncoder(Protocol):
    """B or E: normalised images [B, S, S, 3] -> features [B, feature_width] float32."""

    feature_width: int
    preprocessing: Preprocessing

    def __call__(self, images: jax.Array, *, train: bool = False, keys: jax.Array | None = None) -> jax.Array: ...


class TextEncoder(Protocol):
    """T: token ids [B, T] -> features [B, feature_width] float32."""

    feature_width: int

    def __call__(self, tokens: jax.Array) -> jax.Array: ...


@dataclasses.dataclass(frozen=True)
class VoiceSettings:
    """How the voices are computed and fused: fields of config.model."""

    speaking: tuple[str, ...] = ("base", "text")
    fusion: str = "paper"  # paper | sum
    weights: tuple[float, ...] = (1.0, 1.0)  # of the voices in the sum; only their ratios matter
    sharpness: float = 1.0  # a factor of the sum
    scale: str = "sqrt"  # of the paper's fusion: paper | sqrt | learned
    own_loss: float = 0.0  # of the paper's fusion: weight of each voice's own loss beside that of the fused answer
    temperature: float = 0.05
    tau: float = 1.0
    epsilon: float = 1e-3
    prototype_scale: float = 25.0
    prototype_rank: int = 0
    cosine_scale: float = 0.0  # heads of base and text are cosine heads with this scale; 0 = linear heads
    unit_keys: bool = True  # keys are compared by cosine: the memory keeps them with length 1


class RAC(nnx.Module):
    """The voices and their fusion.

    Heads compute in float32, and the logits of a voice are its own answer. With `base` None and the voice "base", the
    base head reads E's keys (B = E).
    """

    def __init__(
        self,
        base: ImageEncoder | None,
        text: TextEncoder | None,
        *,
        num_classes: int,
        key_width: int = 0,
        settings: VoiceSettings,
        cut: int = 0,
        rngs: nnx.Rngs,
    ):
        if not settings.speaking:
            raise ValueError("RAC needs at least one voice")
        self.base = base
        self.text = text
        self.settings = settings
        self.cut = cut  # B's first blocks, whose output may be given in place of images
        self.num_classes = num_classes  # those that are trained
        self.fixed_scale = fusion_scale(settings.scale, num_classes)
        linear = functools.partial(nnx.Linear, kernel_init=initialisers.xavier)
        head = functools.partial(CosineHead, scale=settings.cosine_scale) if settings.cosine_scale else linear
        if "base" in settings.speaking:
            width = base.feature_width if base is not None else key_width
            self.base_head = head(width, num_classes, rngs=rngs)
        if text is not None:
            self.text_head = head(text.feature_width, num_classes, rngs=rngs)
        if "prototype" in settings.speaking:
            self.prototype = voices.Prototype(
                key_width, num_classes, scale=settings.prototype_scale, rank=settings.prototype_rank, rngs=rngs
            )
        if settings.scale == "learned" and settings.fusion == "paper" and self.output == FUSED:
            self.logit_scale = nnx.Param(jnp.log(jnp.float32(self.fixed_scale)))

    @property
    def output(self) -> str:
        """The name of the logits that give the answer: the only voice, or the fused logits."""
        speaking = self.settings.speaking
        return speaking[0] if len(speaking) == 1 else FUSED

    @property
    def trained(self) -> dict[str, float]:
        """The logits that have a loss, by name, and its weight.

        In the sum each voice is trained by itself. Trained through the sum, a voice relies on the others, and edits of
        the memory do harm. The vote learns nothing.
        """
        speaking, own = self.settings.speaking, self.settings.own_loss
        if len(speaking) == 1:
            return {self.output: 1.0}
        if self.settings.fusion == "paper":
            return {FUSED: 1.0, **(dict.fromkeys(speaking, own) if own else {})}
        return {voice: 1.0 for voice in speaking if voice != "vote"}

    def __call__(
        self,
        images: jax.Array | None,
        found: Neighbours | None = None,
        knowledge: Knowledge | None = None,
        *,
        train: bool = False,
        keys: jax.Array | None = None,
        left_out: LeftOut | None = None,
    ) -> Logits:
        """Logits by voice for uint8 images [B, S, S, 3], or several crops of each [B, V, S, S, 3], and the neighbours.

        Voices that are read from the memory answer for all classes of `knowledge`, base and text for those that they
        were trained on; the fused logits cover all.
        """
        if found is not None and found.key is not None and self.settings.unit_keys:
            found = found.replace(key=unit(found.key))
        logits: Logits = {}
        for voice in self.settings.speaking:
            logits[voice] = self._say(voice, images, found, knowledge, train=train, keys=keys, left_out=left_out)
        if self.output == FUSED:
            logits[FUSED] = self._fused(logits, knowledge)
        return logits

    def _say(
        self, voice: str, images: Any, found: Any, knowledge: Any, *, train: bool, keys: Any, left_out: Any
    ) -> jax.Array:
        if voice == "base" and self.base is not None:
            return self._of_base(images, found, train=train, keys=keys)
        if voice == "base":
            return self.base_head(found.key)
        if voice == "text":
            assert self.text is not None
            return self.text_head(self.text(found.tokens))
        if voice == "vote":
            s = self.settings
            options = {"temperature": s.temperature, "tau": s.tau, "epsilon": s.epsilon}
            return voices.vote(found, knowledge, left_out, **options)
        return self.prototype(found, knowledge, left_out)

    def _of_base(self, images: Any, found: Any, *, train: bool, keys: Any) -> jax.Array:
        """B's logits, from the images or from what its first blocks made of them; the mean over several crops."""
        base: Any = self.base
        if found is None or found.activation is None:
            crops = images if images.ndim == 5 else images[:, None]
            features = base(base.preprocessing.normalise(flat(crops)), train=train, keys=keys)
        else:
            crops = found.activation
            features = base.above(flat(crops).astype(base.dtype), self.cut, train=train, keys=keys)
        return self.base_head(features).reshape(*crops.shape[:2], -1).mean(axis=1)

    def _fused(self, logits: Logits, knowledge: Knowledge | None) -> jax.Array:
        if self.settings.fusion == "paper":
            return fuse(logits["text"], logits["base"], self.scale())
        weights = dict(zip(self.settings.speaking, self.settings.weights, strict=True))
        answers = {voice: jax.nn.log_softmax(logits[voice]) for voice in weights}
        reading = [voice for voice in weights if voice in voices.READ_FROM_MEMORY]
        memory = None
        if reading:
            memory = _mean([answers[voice] for voice in reading], [weights[voice] for voice in reading])
            memory = _with_offset(memory, knowledge, self.num_classes)
            answers |= dict.fromkeys(reading, memory)
        total = _mean([voices.extended(answer, memory) for answer in answers.values()], list(weights.values()))
        return self.settings.sharpness * total

    def with_paper(self, logits: Logits) -> Logits:
        """The logits and, beside a sum of base, text and others, what the paper's fusion of base and text answers."""
        if self.settings.fusion == "paper" or not {"base", "text"} <= logits.keys():
            return logits
        return logits | {PAPER: fuse(logits["text"], logits["base"], self.scale())}

    def probabilities(self, logits: Logits) -> Logits:
        """Probabilities of each voice. In the paper's fusion only the direction of a voice's logits counts."""
        if self.output == FUSED and self.settings.fusion == "paper":
            alone = {name: self.scale() * unit(logits[name]) for name in ("base", "text")}
            logits = {FUSED: logits[FUSED], **alone}
        return {name: jax.nn.softmax(values) for name, values in logits.items()}

    def scale(self) -> jax.Array:
        """The factor of the paper's fusion."""
        if hasattr(self, "logit_scale"):
            return jnp.exp(self.logit_scale[...])
        return jnp.float32(self.fixed_scale)


def _mean(values: Sequence[jax.Array], weights: Sequence[float]) -> jax.Array:
    """The weighted mean of arrays."""
    total = functools.reduce(jnp.add, (weight * value for value, weight in zip(values, weights, strict=True)))
    return total / max(sum(weights), SMALLEST_WEIGHT)


def flat(crops: jax.Array) -> jax.Array:
    """[B, V, …] to [B · V, …]."""
    return crops.reshape(-1, *crops.shape[2:])


def _with_offset(total: jax.Array, knowledge: Knowledge | None, trained: int) -> jax.Array:
    """Fused logits with the offset of new classes (see calibration/new_classes.py), and without padding."""
    if knowledge is None:
        return total
    is_new = jnp.arange(total.shape[1], dtype=jnp.int32) >= trained
    return voices.without_padding(total + jnp.where(is_new, knowledge.offset, 0.0)[None], knowledge)


class CosineHead(nnx.Module):
    """`scale` times the cosines between features [B, D] and one vector per class, [B, L]."""

    def __init__(self, width: int, num_classes: int, *, scale: float = COSINE_SCALE, rngs: nnx.Rngs):
        self.scale = scale
        self.kernel = nnx.Param(initialisers.xavier(rngs.params(), (width, num_classes)))

    def __call__(self, features: jax.Array) -> jax.Array:
        return self.scale * (unit(features) @ unit(self.kernel[...], axis=0))


def fusion_scale(scale: str, num_classes: int) -> float:
    """L / 2 as the paper has it, or √L / 2, which is also where a learned scale starts."""
    return num_classes / 2 if scale == "paper" else num_classes**0.5 / 2


def fuse(text: jax.Array, base: jax.Array, scale: jax.Array) -> jax.Array:
    """scale · (text / |text| + base / |base|), [B, L]."""
    return scale * (unit(text) + unit(base))
