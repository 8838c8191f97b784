"""The benchmarks import each other without a circle, as `mprunner` does."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import benchmarks

ROOT = Path(benchmarks.__file__).parents[1]


def _modules() -> dict[str, ast.Module]:
    """Name -> syntax tree."""
    paths = (ROOT / "benchmarks").rglob("*.py")
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): ast.parse(
            path.read_text(), str(path)
        )
        for path in paths
    }


def _imported(tree: ast.Module) -> Iterator[str]:
    """Every name that is imported, wherever the import stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, "a relative import"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_no_cycle() -> None:
    """Lazy imports count, too: the table of contenders once hid a circle behind one."""
    trees = _modules()
    targets = {name: set(_imported(tree)) & trees.keys() for name, tree in trees.items()}
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> None:
        assert name not in path, f"a cycle: {' -> '.join([*path, name])}"
        if name not in done:
            for target in targets[name]:
                visit(target, [*path, name])
            done.add(name)

    for name in trees:
        visit(name, [])
