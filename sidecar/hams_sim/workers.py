"""Several simulating processes, fed one history at a time."""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from queue import Queue

import hams_compiled
from hams_sim.simulate import HistoryOutcome, Spec
from hams_sim.worker import outcome_from, spec_to


class WorkerDied(Exception):
    """A simulating process ended without an answer."""


class Worker:
    """One process. Strings hash alike in all of them, so a seed replays exactly."""

    def __init__(self, sources: bool = False) -> None:
        """`sources`: the core runs from its sources, which mutants need."""
        root = Path(__file__).resolve().parent.parent
        compiled = None if sources else hams_compiled.simulator(root)
        path = os.pathsep.join(filter(None, (compiled, str(root), os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": path}
        if sources:
            environment["HAMS_PURE"] = "1"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "hams_sim.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def run(self, spec: Spec, mutant: str = "") -> HistoryOutcome:
        """Run one history."""
        self.begin(spec, mutant)
        return self.outcome(spec)

    def begin(self, spec: Spec, mutant: str = "") -> None:
        """Have one history run, behind those begun before."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `outcome` says that it died
            self._process.stdin.write(spec_to(spec, mutant) + "\n")
            self._process.stdin.flush()

    def outcome(self, spec: Spec) -> HistoryOutcome:
        """What came of `spec`, the oldest begun. Raises WorkerDied."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise WorkerDied(f"the process that ran `{spec.command()}` ended with {self._process.wait()}")
        return outcome_from(spec, line)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def run_all(
    specs: Iterable[Spec], jobs: int, mutant: str = "", enough: Callable[[HistoryOutcome], bool] | None = None
) -> Iterator[HistoryOutcome]:
    """Outcomes in the order in which they come. Stops early once `enough` says so of one."""
    waiting: Iterator[Spec] = iter(specs)
    lock, done = threading.Lock(), threading.Event()
    outcomes: Queue[HistoryOutcome | Exception | None] = Queue()

    def serve() -> None:
        worker = Worker(sources=bool(mutant))
        running: Spec | None = None
        try:
            while True:
                with lock:
                    spec = None if done.is_set() else next(waiting, None)
                if spec is not None:
                    worker.begin(spec, mutant)  # so that it need not wait for what is done with the last one
                if running is not None:
                    outcomes.put(worker.outcome(running))
                if spec is None:
                    break
                running = spec
        except WorkerDied as error:
            outcomes.put(error)
        finally:
            worker.close()
            outcomes.put(None)

    threads = [threading.Thread(target=serve, daemon=True) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    living = jobs
    try:
        while living:
            item = outcomes.get()
            if item is None:
                living -= 1
            elif isinstance(item, Exception):
                raise item
            else:
                if enough is not None and enough(item):
                    done.set()
                yield item
    finally:
        done.set()
        while living:
            living -= outcomes.get() is None
