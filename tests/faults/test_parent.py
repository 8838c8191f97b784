"""The parent ends, in any way: nothing of the pool outlives it, and nothing is said twice."""

from __future__ import annotations

import os
import re
import signal

import psutil
import pytest

from tests.support.script import Script
from tests.support.waiting import eventually

METHODS = ("forkserver", "spawn")

#: What the workers are at when the parent is killed: what the script does, what it says then.
SCENES = {
    "busy": ("players = [Busy, Busy, Busy]", "None", ["busy"] * 3),
    "waiting for a prediction": ("players = [TagPlayer] * 3", "hesitate", ["asked"]),
    "idle": ("players = [TagPlayer] * 3", "None", []),
    "with processes of their own": ("players = [Parent, Parent, TagPlayer]", "None", []),
    "busy with processes of their own": (
        "class Both(Busy, Parent): pass\nplayers = [Both, Both, Busy]", "None", ["busy"] * 3
    ),
}


def scene(name: str, method: str) -> tuple[str, list[str]]:
    players, predictor, words = SCENES[name]
    return (
        f"""
{players}
manager = pool(players, {predictor}, start_method={method!r}, staleness=64)
for _ in range(64):
    manager.step(1.0 if {predictor} is None else 0.0)
say("ready")
time.sleep(3600)
""",
        [*words, "ready"],
    )


@pytest.mark.parametrize("name", SCENES)
@pytest.mark.parametrize(
    "method", ["forkserver", *(pytest.param(m, marks=pytest.mark.slow) for m in METHODS[1:])]
)
def test_the_parent_is_killed(name, method, tmp_path):
    body, words = scene(name, method)
    with Script(body, tmp_path) as script:
        script.wait_for(*words)
        pids = script.left()
        assert len(pids) > 3
        os.kill(script.process.pid, signal.SIGKILL)
        script.ends()
        assert script.stderr == ""


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP, signal.SIGSEGV])
def test_the_parent_dies_of_another_signal(signum, tmp_path):
    body, words = scene("busy", "forkserver")
    with Script(body, tmp_path) as script:
        script.wait_for(*words)
        os.kill(script.process.pid, signum)
        script.ends()
        assert script.stderr == ""


def test_a_stopped_worker_goes_with_the_parent(tmp_path):
    body, words = scene("busy", "forkserver")
    with Script(body, tmp_path) as script:
        script.wait_for(*words)
        for child in psutil.Process(script.process.pid).children(recursive=True):
            if child.pid != os.getpgid(child.pid):
                continue
            os.kill(child.pid, signal.SIGSTOP)
        os.kill(script.process.pid, signal.SIGKILL)
        script.ends()


def test_a_child_of_the_parent_lives_on_and_the_workers_do_not(tmp_path):
    body = """
manager = pool([Busy, Busy], staleness=64)
manager.step(1.0, num_steps=8); manager.step(1.0, num_steps=8)
if os.fork() == 0:
    os.environ["ANOTHER"] = "1"
    time.sleep(3600)
say("ready")
time.sleep(3600)
"""
    with Script(body, tmp_path) as script:
        script.wait_for("busy", "ready")
        head = script.process.pid
        workers = [pid for pid in script.left() if os.getpgid(pid) == pid != head]
        assert len(workers) == 2
        os.kill(head, signal.SIGKILL)
        eventually(lambda: not set(workers) & set(script.left()))
        assert script.left(), "the child is to live on"


EXITS = {
    "end": ("", 0, ""),
    "exception": ("raise ValueError('out of order')", 1, "ValueError"),
    "sys.exit": ("sys.exit(3)", 3, ""),
    "sys.exit in a with": (
        "with pool([TagPlayer, TagPlayer]) as other:\n    other.step(1.0)\n    sys.exit(3)", 3, ""
    ),
    "a worker has died": (
        "os.kill(manager.stats().workers[0].pid, 9)\nwhile True:\n    manager.step(1.0)",
        1,
        "WorkerDied",
    ),
    "in a forked child": (
        "pid = os.fork()\n"
        "if pid == 0:\n    sys.exit(5)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5\n"
        "manager.step(1.0, num_steps=8)\nassert manager.join()\nsys.exit(3)",
        3,
        "",
    ),
    "held by a thread that goes on": (
        "threading.Thread(target=lambda: time.sleep(3600), daemon=True).start()\nsys.exit(3)", 3, ""
    ),
}


@pytest.mark.parametrize(
    ("name", "players"),
    [
        *((name, "[TagPlayer] * 3") for name in EXITS),
        ("sys.exit", "[Busy] * 3"),
        *(
            pytest.param(name, "[Busy] * 3", marks=pytest.mark.slow)
            for name in ("end", "exception", "sys.exit in a with", "held by a thread that goes on")
        ),
    ],
)
def test_exit_without_close(name, players, tmp_path):
    lines, code, words = EXITS[name]
    body = f"""
manager = pool({players}, staleness=64)
manager.step(1.0, num_steps=8); manager.step(1.0, num_steps=8)
say("ready")
{lines}
"""
    with Script(body, tmp_path) as script:
        script.wait_for("ready")
        assert script.ends() == code
        assert script.stderr.count("Traceback") == bool(words) or "WorkerDied" in words
        assert words in script.stderr
        assert "resource_tracker" not in script.stderr


def test_a_module_global_under_pytest(tmp_path):
    body = """
import pytest
from pathlib import Path
Path("test_it.py").write_text('''
from tests.support.pools import pool
from tests.support.tagged import TagPlayer

manager = pool([TagPlayer, TagPlayer])

def test_it():
    manager.step(1.0, num_steps=8)
    assert manager.join()
''')
say("ready")
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "test_it.py"]))
"""
    with Script(f"os.chdir({str(tmp_path)!r})\n{body}", tmp_path) as script:
        script.wait_for("ready")
        assert script.ends() == 0
        assert "Traceback" not in script.stderr


class TestCtrlC:
    """To the whole process group, as a terminal sends it, at each stage of a pool's life.

    Each line of the start has its turn in `test_interrupt`; random moments in ``make chaos``.
    """

    #: The stage at which it comes -> what the script says there.
    POINTS = {
        "before the pool": "begun",
        "in a factory": "factory",
        "while it steps": "stepping",
        "in a simulator": "busy",
        "in join": "joining",
        "in close": "closing",
    }

    BODY = """
class Player(Busy):
    def __init__(self):
        super().__init__()
        say("factory")
        if POINT == "factory":
            time.sleep(3600)
    def step(self, action):
        return (super() if POINT in ("busy", "joining") else super(Busy, self)).step(action)
    def close(self):
        if POINT == "closing":
            say("closing")
            time.sleep(3600)

def run():
    manager = pool([Player] * 3, start_method=METHOD, staleness=16, close_timeout=3600)
    for _ in range(50 if POINT == "closing" else 10**9):
        manager.step(1.0)
        say("stepping")
        if POINT == "joining":
            say("joining")
            manager.join()
    manager.close()

say("begun")
if POINT == "begun":
    time.sleep(3600)
run()
"""

    @pytest.mark.parametrize("point", POINTS)
    @pytest.mark.parametrize(
        "method", ["forkserver", *(pytest.param(m, marks=pytest.mark.slow) for m in METHODS[1:])]
    )
    def test_ctrl_c(self, point, method, tmp_path):
        word = self.POINTS[point]
        body = f"METHOD, POINT = {method!r}, {word!r}\n{self.BODY}"
        with Script(body, tmp_path) as script:
            script.wait_for(word)
            script.kill_group(signal.SIGINT)
            check_interrupted(script)


def check_interrupted(script: Script) -> None:
    """It ends of the signal, with one traceback, the parent's own, and leaves nobody."""
    assert script.ends() == -signal.SIGINT
    text = script.stderr
    assert len(re.findall("^Traceback", text, re.MULTILINE)) == 1, text
    assert text.rstrip().endswith("KeyboardInterrupt"), text
    assert "script.py" in text
