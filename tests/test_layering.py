"""The house: imports go down only, and what is heavy or multiprocessing stays in its rooms."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import mprunner
from tests.support.waiting import HANG_S

ROOT = Path(mprunner.__file__).parent

#: From the bottom to the top: a module imports only what stands before it. "mprunner" is the
#: package itself, with all that is public.
ORDER = """
_version errors checks activity stats settings
experience weights predictors player history rows
replay replay.rings replay.repair replay.storage replay.resize replay.index replay.sampling
replay.priorities replay.arguments replay.fileformat replay.files replay.mapped replay.sampler
replay.prefetch replay.inspect replay.streams replay.copying replay.memory
runner pace ledger
backends backends.base backends.failure backends.serving backends.local backends.thread
backends.pool
backends.process backends.process.launch backends.process.pipes backends.process.channel
backends.process.worker backends.process.member backends.process.backend
backends.ray backends.ray.cluster backends.ray.actor backends.ray.handle backends.ray.backend
assembly manager expreplay
atari.frames atari.games atari.player atari
mprunner
cli.output cli.simulators cli.options cli.display cli.replay cli.collect cli
__main__
""".split()

#: Who may import what, of that which most must do without.
ROOMS = {
    "multiprocessing": {
        "backends.process.channel",
        "backends.process.launch",
        "backends.process.pipes",
        "backends.process.backend",
        "backends.process.worker",
    },
    "ray": {"backends.ray.backend", "backends.ray.cluster", "backends.ray.handle"},
    "ale_py": {"atari"},
    "cv2": {"atari"},
    "gymnasium": {"atari", "cli", "replay.inspect"},
    "minari": {"replay.inspect"},
    "rich": {"cli", "expreplay"},
    "tensorboard": {"cli"},
    "torch": {"predictors", "experience"},
}
REQUIRED = {"numpy", "cloudpickle"}


def modules():
    """Name (without "mprunner.") -> syntax tree."""
    trees = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        trees[name] = ast.parse(path.read_text(), str(path))
    return trees


TREES = modules()


def level_of(name):
    """The level of a module."""
    assert (name or "mprunner") in ORDER, f"{name} is on no level: add it to ORDER"
    return ORDER.index(name or "mprunner")


def imports(tree):
    """(node, full name of what is imported) of each import, wherever it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "a relative import"
            for alias in node.names:
                yield node, f"{node.module}.{alias.name}"


def own_imports(tree):
    """The modules of this package that a module imports."""
    for node, name in imports(tree):
        if name.split(".")[0] != "mprunner":
            continue
        inside = name.partition(".")[2]
        while inside not in TREES:
            inside = inside.rpartition(".")[0]
        yield inside


@pytest.mark.parametrize("name", TREES)
def test_imports_go_down(name):
    level = level_of(name)
    for target in own_imports(TREES[name]):
        if name and not target:
            raise AssertionError(f"mprunner.{name} imports the package, not a sibling by name")
        lower = target == name or level_of(target) < level
        assert lower, f"mprunner.{name} imports mprunner.{target}"


def test_no_cycle():
    done: set[str] = set()

    def visit(name, path):
        assert name not in path, f"a cycle: {' -> '.join([*path, name])}"
        if name not in done:
            for target in set(own_imports(TREES[name])) - {name}:
                visit(target, [*path, name])
            done.add(name)

    for name in TREES:
        visit(name, [])


@pytest.mark.parametrize("name", TREES)
def test_what_is_heavy_stays_in_its_room(name):
    for _, full_name in imports(TREES[name]):
        package = full_name.split(".")[0]
        if package == "mprunner" or package in sys.stdlib_module_names - {"multiprocessing"}:
            continue
        if package in REQUIRED:
            continue
        rooms = ROOMS.get(package, set())
        assert name in rooms or name.split(".")[0] in rooms, f"mprunner.{name} imports {package}"


def at_import(nodes):
    """The import statements that are executed as a module is loaded."""
    for node in nodes:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            yield from at_import(node.orelse)
        elif isinstance(node, (ast.If, ast.Try, ast.With)):
            for part in ("body", "orelse", "finalbody", "handlers"):
                yield from at_import(getattr(node, part, []))
        elif isinstance(node, ast.ExceptHandler):
            yield from at_import(node.body)


@pytest.mark.parametrize(
    "name", [name for name in TREES if level_of(name) < ORDER.index("expreplay")]
)
def test_an_extra_is_loaded_where_it_is_used(name):
    for node in at_import(TREES[name].body):
        for _, full_name in imports(node):
            package = full_name.split(".")[0]
            if package in ROOMS and package != "multiprocessing":
                assert name.startswith("backends.ray"), f"{name} loads {package}"


def test_a_worker_loads_nothing_heavy():
    heavy = ["gymnasium", "torch", "cv2", "ale_py", "ray", "rich", "matplotlib", "psutil"]
    code = (
        "import sys, mprunner.backends.process.worker; "
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG_S
    )
    assert (found.stdout.strip(), found.stderr) == ("[]", "")


def test_exported_names():
    exported = mprunner.__all__
    assert exported == sorted(exported, key=lambda name: (name.startswith("__"), name))
    public = {
        name
        for name, value in vars(mprunner).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    }
    assert public == set(exported) - {"__version__"}


@pytest.mark.parametrize("name", sorted(set(mprunner.__all__) - {"__version__"}))
def test_what_is_exported_is_documented(name):
    item = getattr(mprunner, name)
    assert inspect.getdoc(item), name
    for attribute, value in vars(item).items():
        if attribute.startswith("_") or not (
            inspect.isfunction(value) or isinstance(value, (property, classmethod))
        ):
            continue
        assert inspect.getdoc(getattr(item, attribute)), f"{name}.{attribute}"
    module = importlib.import_module(item.__module__)
    assert module.__doc__, item.__module__
