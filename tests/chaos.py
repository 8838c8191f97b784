"""Chaos: what only chance can find, tried again and again for as long as it is told.

Run by ``make chaos``; the tests have each point once where points can be told apart. A round has a
seed, which is printed before it begins, so that one that fails can be repeated alone::

    python -m tests.chaos --only ctrl_c --seed 17
"""

from __future__ import annotations

import argparse
import logging
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil

from mprunner import EnvRunner, EnvRunnerManager
from tests.support.script import Script
from tests.faults.soak import soak
from tests.faults.test_parent import METHODS, check_interrupted
from tests.replay.test_kill import check_resized_file, check_file, write_and_kill
from tests.replay.test_sampling import sample_beside_writers
from tests.support.streams import RecordingMemory, check_streams
from tests.support.tagged import STEPS, TAG_SHAPE, Ledger, Tag

CTRL_C = """
def run():
    manager = pool([TagPlayer] * 3, start_method=METHOD, staleness=16)
    say("ready")
    while True:
        manager.step(1.0)

say("begun")
run()
"""


def ctrl_c(seed: int, root: Path) -> None:
    """Ctrl-C at a random moment, at the start or after it."""
    chance = random.Random(seed)
    body = f"METHOD = {chance.choice(METHODS)!r}\n{CTRL_C}"
    with Script(body, root, interrupted=True) as script:
        script.wait_for("begun", *(["ready"] if chance.random() < 0.5 else []))
        time.sleep(chance.uniform(0, 0.5))  # the moment is what is being tried
        script.kill_group(2)
        check_interrupted(script)


def killed_writer(seed: int, root: Path) -> None:
    """A replay file whose writer is killed at a random instant, ten times."""
    for number in range(10 * seed, 10 * seed + 10):
        check_file(*write_and_kill(root, "write", number))
        check_resized_file(write_and_kill(root, "resize", number)[0])


def tail(seed: int, root: Path) -> None:
    """A thousand steps and close, beside two busy loops: nothing of the tail is lost."""
    num_steps = random.Random(seed).choice((1, 2, 4, 8))
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        for repeat in range(5):
            _thousand_steps(num_steps, Ledger(root / f"ledger{repeat}"))
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def _thousand_steps(num_steps: int, ledger: Ledger) -> None:
    tags = [Tag(i, 11 + i) for i in range(3)]
    memory = RecordingMemory(1500, TAG_SHAPE, 2, "int32")
    runners = [EnvRunner(tag.factory(ledger=ledger), None, memory, 2) for tag in tags]
    manager = EnvRunnerManager(runners, 64)
    for _ in range(1000 // num_steps):
        manager.step(1.0, num_steps=num_steps)
    manager.close()
    stats = manager.stats()
    assert (stats.steps_asked, stats.steps_stored, stats.steps_lost) == (1000, 1000, 0)
    assert ledger.total(STEPS) == memory.num_steps == 1000
    check_streams(memory, tags)


def sampling(seed: int, root: Path) -> None:
    """A learner samples while four threads write."""
    sample_beside_writers(5000, seed)


def kills(seed: int, root: Path) -> None:
    """Workers are killed, stopped and crashed while a learner samples."""
    soak(seed, root, num_kills=40)


ROUNDS: dict[str, Callable[[int, Path], None]] = {
    "ctrl_c": ctrl_c,
    "killed_writer": killed_writer,
    "tail": tail,
    "sampling": sampling,
    "kills": kills,
}


def run(name: str, seed: int) -> None:
    """One round; AssertionError if anything is not as it must be."""
    print(f"{name}, seed {seed} ... ", end="", flush=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as root:
        ROUNDS[name](seed, Path(root))
    print(f"{time.monotonic() - began:.1f} s", flush=True)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=0.0, help="how long to go on")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--only", choices=ROUNDS, help="one kind of rounds; by default in turn")
    options = parser.parse_args()
    logging.getLogger("mprunner").setLevel(logging.ERROR)
    began, done = time.monotonic(), Counter[str]()
    names = [options.only] if options.only else list(ROUNDS)
    while True:
        number = sum(done.values())
        name = names[number % len(names)]
        run(name, options.seed + number)
        done[name] += 1
        left = [child.cmdline() for child in psutil.Process().children(recursive=True)]
        assert len(left) <= 2, f"more is left than a fork server and a tracker: {left}"
        if time.monotonic() - began >= options.seconds:
            break
    print(f"{sum(done.values())} rounds in {time.monotonic() - began:.0f} s: {dict(done)}")


if __name__ == "__main__":
    main()
