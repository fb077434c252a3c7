"""Longer texts for classes, made of a template: "a photo of a {name}, a kind of {group}"."""

import dataclasses
import string

from rac_jax.config import ConfigError
from rac_jax.data.dataset import Dataset, words

KNOWN = ("name", "group", "others")


def of(dataset: Dataset, template: str) -> Dataset:
    """The data set with the template's text for each class; "" leaves the texts as they are.

    {name} is the class's own text, {group} the name of the group of classes that it belongs to, and {others} are the
    other classes of the group.
    """
    if not template:
        return dataset
    used = fields(template)
    if not dataset.class_groups and {"group", "others"} & used:
        raise ConfigError(
            f"config.data.caption is {template!r}, but the classes of {dataset.name} have no groups; use {{name}} only"
        )
    groups = [words(group).lower() for group in dataset.class_groups] or [""] * dataset.num_classes
    texts = []
    for label, (text, group) in enumerate(zip(dataset.class_texts, groups, strict=True)):
        others = [
            other
            for number, (other, theirs) in enumerate(zip(dataset.class_texts, groups, strict=True))
            if theirs == group and number != label
        ]
        texts.append(template.format(name=text, group=group, others=" or ".join(others) or group))
    return dataclasses.replace(dataset, class_texts=tuple(texts))


def fields(template: str) -> set[str]:
    """The names in braces; an error for a template that cannot be filled."""
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        raise ConfigError(f"config.data.caption is {template!r}: {error}") from error
    plain = all(not spec and not conversion for _, name, spec, conversion in parts if name is not None)
    used = {name for _, name, _, _ in parts if name is not None}
    if not plain or not used <= set(KNOWN) or not used:
        raise ConfigError(f"config.data.caption is {template!r}; it needs some of {{name}}, {{group}} and {{others}}")
    return used
