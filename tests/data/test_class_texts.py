"""Texts of classes made of a template."""

import dataclasses

import pytest

from rac_jax.config import ConfigError
from rac_jax.data import class_texts
from tests.data.test_subset import made


def test_a_template_names_the_class_its_group_and_the_others_in_it():
    grouped = dataclasses.replace(made(), class_groups=("First-kind", "second", "First-kind", "First-kind"))
    found = class_texts.of(grouped, "a {name}, a kind of {group} as {others}")
    assert found.class_texts == (
        "a A, a kind of first kind as C or D",
        "a B, a kind of second as second",
        "a C, a kind of first kind as A or D",
        "a D, a kind of first kind as A or C",
    )
    assert class_texts.of(grouped, "") is grouped
    assert found.fingerprint("train") != grouped.fingerprint("train")


def test_what_cannot_be_filled_is_named():
    with pytest.raises(ConfigError, match="the classes of made have no groups"):
        class_texts.of(made(), "{name} of {group}")
    assert class_texts.of(made(), "a {name}").class_texts[0] == "a A"
    for wrong in ("{nothing}", "no field", "{name!r}", "{name:9}", "{name", "{0}", "{}"):
        with pytest.raises(ConfigError, match=r"config\.data\.caption is "):
            class_texts.of(made(), wrong)
