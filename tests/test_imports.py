"""The layers of the package: no import goes up, and none goes in a circle."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1] / "rac_jax"

# From the bottom to the top. A module or room imports only what stands before it.
LAYERS = (
    "config", "rules", "sharding", "runtime", "metrics", "data", "models", "losses", "weights", "memory",
    "retrieval", "run", "start", "optimizer", "calibration", "answering", "checkpoints", "report", "evaluate",
    "hooks", "train",
    "predict", "export", "api", "serve", "reproduce", "bench", "compile", "main",
)  # fmt: skip


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """The rooms of rac_jax that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "rac_jax":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rac_jax."):
            found.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("rac_jax.")}
    return found


def modules() -> list[Path]:
    """Every file except the commands (`__main__`), which stand above everything, and the package's own `__init__`."""
    return [p for p in sorted(ROOT.rglob("*.py")) if p.name != "__main__.py" and p != ROOT / "__init__.py"]


def test_every_room_has_a_layer():
    assert {room_of(path) for path in modules()} == set(LAYERS)


def test_no_import_goes_up():
    place = {room: number for number, room in enumerate(LAYERS)}
    wrong = [
        f"{path.relative_to(ROOT)} imports {other}"
        for path in modules()
        for other in imported(path)
        if place[other] > place[room_of(path)]
    ]
    assert not wrong, "\n".join(wrong)


def test_no_circle_between_modules():
    """Within a room, too: follow the imports of each file; none leads back to it."""
    graph = {}
    for path in modules():
        name = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")
        graph[name] = path
    edges = {name: _edges(path, set(graph)) - {name} for name, path in graph.items()}
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join([*trail[trail.index(name) :], name])
        if name not in done:
            for other in sorted(edges[name]):
                visit(other, (*trail, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def _edges(path: Path, known: set[str]) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rac_jax"):
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.add(full if full in known else node.module)
    return found & known
