"""The processes of a run: started in their places, started again when they end, replaced when they hang,
ended at last.

An instance is what a pod is on Kubernetes: a proxy and a model under one id. A proxy that ends takes its
model along, and a fresh instance under a fresh id takes its place; a model that ends is started again beside
its proxy, which has told everybody. Roles, failover and state are no business of this module.
"""

import asyncio
import contextlib
import errno
import logging
import os
import secrets
import shutil
import signal
import sys
from collections.abc import Coroutine, Iterator
from pathlib import Path

from hams_operator.graph_status import FailureInfo, said
from hams_operator.limits import log_bytes_max
from hams_operator.local import limits
from hams_operator.local.fork_client import ForkClient, ForkServerLost
from hams_operator.local.home import GraphHome
from hams_operator.local.logfiles import cut, last_lines, shortened
from hams_operator.local.metrics import path_of
from hams_operator.local.observe import Membership, Observer, current
from hams_operator.local.places import MANAGER, Ends, Launch, LocalPod, Place, Replacements, pause_after
from hams_operator.local.processes import send, start
from hams_operator.local.starvation import CpuWaits
from hams_protocol.graph import FRONTEND, Graph
from hams_protocol.ids import InstanceId
from hams_protocol.lateness import Lateness
from hams_protocol.limits import judge_late_share
from hams_wire.errors import CoordinationError
from hams_wire.process import EXIT_STOPPED

log_check_s = 1.0
"""Between two looks at the size of log files."""

crash_loop_ends_min = 2
"""A process that has ended young this many times in a row is in a crash loop."""

start_ends_max = 3
"""A graph with a process that has ended young this many times before the graph was ever ready is given up."""

failure_lines_max = 20
failure_bytes_max = 64 << 10
failure_line_chars_max = 1000
"""Lines of a model's log shown with its failure, out of how much of its end, and how much of each."""

hung_check_s = 0.5
"""Between two looks for instances that the graph has given up and that do not end."""

hung_revoked_s = 1.0
"""A revoked instance ends by itself at once; after this long it hangs."""

hung_missing_s = 4.0
"""One that has lost its registration is back in a moment, or hangs."""

hung_unborn_s = 20.0
"""One that was never seen registered after this long hangs: it came and went between two looks, or never got
that far."""

hung_kill_s = 30.0
"""An instance that hangs is killed after this long in a stretch; one that is back is asked to end then.
Neither, if it may have a state alone."""

hung_starved_s = 60.0
"""While the supervisor, or a process that it looks after, gets too little CPU nobody hangs before this long:
they wait for each other."""

hung_late_s = 0.1
"""A supervisor that looks later than this gets too little CPU."""

hung_wait_share = 0.5
"""A graph gets too little CPU if a process of it has waited for CPU for more than this part of the time since
the last look."""


log = logging.getLogger("hams.local")

DATA_MODULES = ("hams_sidecar.proxy", "hams_sidecar.frontend", "hams_operator.manager.process")
"""What the data plane's processes import; forked from one warmed process."""

_PASSING = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
"""No process, memory or descriptor to be had just now: what another try may not meet again."""


class CannotWarm(Exception):
    """The process that others are forked from cannot be started; the text says why."""


class Instances:
    """All instances of one run. `Supervisor` says which are wanted, and where etcd is.

    `restore`: sets that never had a primary begin from their newest checkpoints.
    """

    restore = False

    def __init__(self, graph: Graph, file: Path, history_folder: Path | None, etcd: str | None) -> None:
        self.graph = graph
        self.uid = graph.data.uid
        self.home = GraphHome(graph.data.name)
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._file = file.resolve()
        self._history = None if history_folder is None else history_folder.resolve()
        self._etcd_url = etcd
        self._http_port = 0
        self._grpc_port = 0
        self._observer: Observer | None = None
        self._memory = Path()
        self._places: list[Place] = []
        self._left: list[Place] = []
        self._replacements = Replacements()
        self._lateness = Lateness(hung_late_s / judge_late_share)
        self._by_pid: dict[int, Place] = {}
        self._fresh: set[int] = set()
        self._fork_clients: dict[str, ForkClient] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._reapers: set[asyncio.Task[None]] = set()
        self._counter = 0
        self._stopping = False
        self._some_end = asyncio.Event()
        self._waits = CpuWaits()
        self._starved_said_s = float("-inf")

    def given_up(self) -> FailureInfo | None:
        """A process that cannot be started: it ended young again and again."""
        return next((ends.last for ends in self._all_ends() if ends.count >= start_ends_max), None)

    def _failures(self) -> tuple[FailureInfo, ...]:
        """Processes in a crash loop. One that has run for a while is in none any more."""
        calm = self._now() - limits.restart_young_s
        for place in self._places:
            pod = place.pod
            if pod is not None and pod.model_pid and pod.model_started_s < calm:
                place.ends = Ends()
            if pod is not None and pod.proxy_pid and pod.started_s < calm:
                place.own_ends = Ends()
        return tuple(
            ends.last
            for ends in self._all_ends()
            if ends.last is not None and ends.count >= crash_loop_ends_min
        )

    def _all_ends(self) -> Iterator[Ends]:
        """Proxies before models: a model follows its proxy."""
        for place in self._places:
            yield place.own_ends
            yield place.ends

    # -- processes -------------------------------------------------------------------------------------------

    async def _warm(self, name: str, modules: tuple[str, ...]) -> None:
        fork_client = self._fork_clients[name] = ForkClient(self._exited)
        await fork_client.start(modules, self.home.logs / f"warm-{name}.log")
        self._spawn_task(self._watch_fork_server(name, fork_client))

    async def _watch_fork_server(self, name: str, fork_client: ForkClient, ends: int = 0) -> None:
        """All processes forked by a warmed process die with it; a new one takes over, and the exits are made
        up for.

        `ends`: how many in a row ended before they were warm. Such a one cannot import what it should, and no
        other can.
        """
        await fork_client.lost.wait()
        if self._stopping:
            return
        log.error("the warmed process %s has ended; all its children with it", name)
        ends = 0 if fork_client.warm else ends + 1
        if ends >= crash_loop_ends_min:
            path = self.home.logs / f"warm-{name}.log"
            last_line = FailureInfo("", "", 0, self._log_end(path)).last_line
            raise CannotWarm(
                f"the process that imports {name} modules ended {ends} times: {last_line} ({path})"
            )
        fresh = ForkClient(self._exited)
        self._fork_clients[name] = fresh
        await fresh.start(
            DATA_MODULES if name == "data" else self._model_modules(), self.home.logs / f"warm-{name}.log"
        )
        self._spawn_task(self._watch_fork_server(name, fresh, ends))
        for pid, place in list(self._by_pid.items()):
            pod = place.pod
            if (
                pod is not None
                and pid not in self._fresh
                and pid == (pod.proxy_pid if name == "data" else pod.model_pid)
            ):
                self._exited(pid, -signal.SIGKILL)

    def _model_modules(self) -> tuple[str, ...]:
        """What models import that takes long: torch only where a model's file names it."""
        folder = self._file.parent
        forked = [op.model for op in self.graph.data.operators if not (op.model.python or op.model.env)]
        names = {model.entrypoint.partition(":")[0].replace(".", "/") + ".py" for model in forked}
        texts = [
            path.read_text(encoding="utf-8", errors="replace")
            for name in names
            if (path := folder / name).is_file()
        ]
        return ("hams_sdk.serve", "numpy", *(("torch",) if any("torch" in text for text in texts) else ()))

    async def _fill(self, place: Place) -> None:
        """Start a fresh instance in a place. Its id was never used before."""
        self._counter += 1
        kind = {FRONTEND: "frontend", MANAGER: "manager"}.get(place.of, place.of)
        instance = f"{kind}-{self._counter}-{secrets.token_hex(2)}"
        pod = place.pod = LocalPod(instance, place.of, started_s=self._now())
        common = [
            "--graph",
            self.uid,
            "--instance",
            instance,
            "--etcd",
            self._etcd_url or "",
            "--listen",
            f"unix:{self._peer_socket(instance)}",
            "--probe-socket",
            str(path_of(self._memory, instance)),
        ]
        environment = {"HAMS_HISTORY": "" if self._history is None else str(self._history)}
        if place.of == MANAGER:
            launch = Launch(instance, place.of, "hams_operator.manager.process", common, environment)
        elif place.of == FRONTEND:
            ports = ["--http-port", str(self._http_port), "--grpc-port", str(self._grpc_port)]
            launch = Launch(instance, place.of, "hams_sidecar.frontend", [*common, *ports], environment)
        else:
            files = [
                "--operator",
                place.of,
                "--socket",
                str(self._socket(instance)),
                "--arena",
                str(self._memory / f"{instance}.arena"),
            ]
            if self.restore:
                files.append("--restore")
            launch = Launch(instance, place.of, "hams_sidecar.proxy", [*common, *files], environment)
        launch = self.arrange(launch)
        try:
            pid = await self._fork_clients["data"].spawn(
                launch.module, launch.arguments, launch.environment, self.home.folder, self._log(instance)
            )
        except (ForkServerLost, TimeoutError):
            self._spawn_task(self._fill_later(place))
            return
        pod.proxy_pid = pid
        self._by_pid[pid] = place
        if place.of in self.graph.operators:
            await self._start_model(place, pod)

    def arrange(self, launch: Launch) -> Launch:
        """The last word on how a process is started: fault tests put it on a host of its own, or behind a bad
        network."""
        return launch

    async def _start_model(self, place: Place, pod: LocalPod) -> None:
        op = self.graph.operators[place.of]
        environment = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"), **dict(op.model.env)}
        folder = self._file.parent
        arguments = [op.model.entrypoint, "--socket", str(self._socket(pod.instance)), "--path", str(folder)]
        output = self._log(f"{pod.instance}.model")
        pod.model_started_s = self._now()
        try:
            if op.model.python:
                pid = await self._start_fresh([op.model.python], arguments, environment, folder, output)
            elif op.model.env:
                # A forked process would miss some: those that are read when an interpreter starts, or by
                # imports that the fork server has behind it.
                pid = await self._start_fresh([sys.executable, "-P"], arguments, environment, folder, output)
            else:
                pid = await self._fork_clients["model"].spawn(
                    "hams_sdk.serve", arguments, environment, folder, output
                )
        except (ForkServerLost, TimeoutError):
            # There is no process whose end would be reported, so nothing else would start the model again.
            self._spawn_task(self._restart_model(place, pod))
            return
        except OSError as error:
            reason = f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)
            log.warning("the model of %s cannot be started: %s", pod.instance, reason)
            if error.errno in _PASSING:
                self._spawn_task(self._restart_model(place, pod))
            else:
                where = "model.python " if op.model.python and error.filename == op.model.python else ""
                place.ends = Ends(start_ends_max, FailureInfo(place.of, pod.instance, 127, (where + reason,)))
            return
        pod.model_pid = pid
        self._by_pid[pid] = place

    async def _start_fresh(
        self,
        program: list[str],
        arguments: list[str],
        environment: dict[str, str],
        folder: Path,
        output: Path,
    ) -> int:
        """A model under another interpreter, or with variables of its own, is started, not forked. `program`:
        an interpreter and its options.

        Raises FileNotFoundError if there is no such interpreter, OSError.
        """
        python = program[0]
        if (
            shutil.which(folder / python if os.sep in python else python, path=environment.get("PATH"))
            is None
        ):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), python)
        command = [*program, "-m", "hams_sdk", "serve", *arguments]
        process = await start(command, folder, output, environment)

        async def reap() -> None:
            status = await process.wait()
            self._fresh.discard(process.pid)
            self._exited(process.pid, status)

        self._fresh.add(process.pid)
        # The end of the run cancels other tasks, but not this one: only this one reports that the process has
        # ended, and `_reaped` waits for it.
        self._spawn_task(reap(), self._reapers)
        return process.pid

    def _exited(self, pid: int, status: int) -> None:
        self._some_end.set()
        place = self._by_pid.pop(pid, None)
        pod = None if place is None else place.pod
        if place is None or pod is None or self._stopping:
            if pod is not None and pod.model_pid == pid:
                pod.model_pid = 0
            elif pod is not None and pod.proxy_pid == pid:
                pod.proxy_pid = 0
            return
        if place.left:
            self._left_ended(place, pod, pid)
        elif pid == pod.model_pid:
            pod.model_pid = 0
            log.warning("model of %s (pid %d) ended with %s", pod.instance, pid, _said(status))
            self._note_end(place, pod, status)
            self._spawn_task(self._restart_model(place, pod))
        elif pid == pod.proxy_pid:
            log.warning("%s (pid %d) ended with %s", pod.instance, pid, _said(status))
            self._note_own_end(place, pod, status)
            self._replace(place, pod)

    # -- instances that hang ---------------------------------------------------------------------------------

    async def _watch_hung(self) -> None:
        """An instance that the graph has given up and that does not end (stopped, stuck) gets a successor;
        after a while it is ended.

        Until then it stays, as a node that is cut off would: should it wake up, its messages are refused.
        """
        missing_since: dict[InstanceId, float] = {}
        registered: set[InstanceId] = set()
        while True:
            due_s = self._now() + hung_check_s
            await asyncio.sleep(hung_check_s)
            self._note_lateness(self._now() - due_s, self._waits.share(self._by_pid, self._now()))
            assert self._observer is not None, "started"
            try:
                membership = await self._observer.membership()
            except CoordinationError:  # nobody can register without etcd
                missing_since.clear()
                for place in self._left:
                    place.missing_s = self._now()
                continue
            members, revoked = membership.registered, membership.revoked
            registered.update(members, membership.warming)
            now = self._now()
            for place in list(self._places):
                pod = place.pod
                if pod is None or pod.ending or not pod.proxy_pid:
                    continue
                if pod.instance not in registered:
                    if now - pod.started_s >= self._patience_s(hung_unborn_s):
                        self._leave(place, pod)
                    continue
                goes_by = current(pod.instance, pod.proxy_pid, members, revoked)
                if pod.instance in membership.warming or (goes_by in members and goes_by not in revoked):
                    missing_since.pop(pod.instance, None)
                    continue
                bound = hung_revoked_s if pod.instance in revoked else hung_missing_s
                if now - missing_since.setdefault(pod.instance, now) >= self._patience_s(
                    bound
                ) and self._leave(place, pod):
                    del missing_since[pod.instance]
            for place in self._left:
                if place.pod is not None:
                    self._settle_left(place, place.pod, membership)

    def _note_lateness(self, by_s: float, share: float) -> None:
        """This process came so much too late to look after the others, and one of those waited for CPU for
        such a part of the time: if that is too much, it says so, and has patience."""
        now = self._now()
        waits = share > hung_wait_share
        self._lateness.late(max(by_s, share * hung_check_s if waits else 0.0), now)
        if not self._lateness.may_judge(now) and now >= self._starved_said_s + limits.hung_calm_s:
            self._starved_said_s = now
            log.warning(
                "the machine is busy: this process was late by %.2f s, and one of the graph's waited for "
                "CPU %d %% of the time. "
                "Nobody is replaced for hanging before %g s",
                by_s,
                round(100 * share),
                hung_starved_s,
            )

    def _patience_s(self, bound_s: float) -> float:
        """How long an instance may hang: a process without CPU does not hang."""
        return bound_s if self._lateness.may_judge(self._now()) else max(bound_s, hung_starved_s)

    def _settle_left(self, place: Place, pod: LocalPod, membership: Membership) -> None:
        """An instance that hangs is killed after a while, but not while its process may hold all that is left
        of a state: it may wake up. One that is back may lead, and have a state that nobody else has: it goes
        on until somebody has, then is asked to end, and hands over."""
        now = self._now()
        goes_by = current(pod.instance, pod.proxy_pid, membership.registered, membership.revoked)
        if goes_by in membership.registered and goes_by not in membership.revoked and not pod.ending:
            place.missing_s = now
            if goes_by not in membership.alone and now - place.left_s > hung_kill_s:
                log.warning(
                    "%s (pid %d) is back, and another one has its place: it is asked to end",
                    goes_by,
                    pod.proxy_pid,
                )
                pod.ending = True
                send(pod.proxy_pid, signal.SIGTERM)
        elif membership.may_be_last(pod.instance):
            place.missing_s = now
        elif now - place.missing_s > self._patience_s(hung_kill_s):
            send(pod.model_pid, signal.SIGKILL)
            send(pod.proxy_pid, signal.SIGKILL)

    def _leave(self, place: Place, pod: LocalPod) -> bool:
        """The instance hangs, and another one takes its place; False if it is too early for one more."""
        now = self._now()
        if not self._replacements.may_replace(len(self._left), now):
            return False
        self._replacements.replaced(now)
        log.warning(
            "%s (pid %d) hangs: the graph has given it up and it does not end; a fresh instance takes its "
            "place",
            pod.instance,
            pod.proxy_pid,
        )
        aside = Place(place.of, place.number, pod, left=True, left_s=self._now(), missing_s=self._now())
        self._left.append(aside)
        for pid in (pod.proxy_pid, pod.model_pid):
            if pid in self._by_pid:
                self._by_pid[pid] = aside
        place.pod = None
        self._spawn_task(self._fill(place))
        return True

    def _left_ended(self, place: Place, pod: LocalPod, pid: int) -> None:
        if pid == pod.model_pid:
            pod.model_pid = 0
            return
        pod.proxy_pid = 0
        self._by_pid.pop(pod.model_pid, None)
        send(pod.model_pid, signal.SIGKILL)
        self._left.remove(place)
        self._tidy(pod)

    def _tidy(self, pod: LocalPod) -> None:
        (self._memory / f"{pod.instance}.arena").unlink(missing_ok=True)
        self._socket(pod.instance).unlink(missing_ok=True)
        self._peer_socket(pod.instance).unlink(missing_ok=True)
        path_of(self._memory, pod.instance).unlink(missing_ok=True)

    def _replace(self, place: Place, pod: LocalPod) -> None:
        """The instance is over: its model goes too, and a fresh instance comes."""
        pod.ending = True
        pod.proxy_pid = 0
        if pod.model_pid:
            self._by_pid.pop(pod.model_pid, None)
            send(pod.model_pid, signal.SIGKILL)
            pod.model_pid = 0  # nobody is told of its end any more, and the pid may soon be another's
        young = self._now() - pod.started_s < limits.restart_young_s
        place.pause_s = pause_after(place.pause_s, young, limits.restart_pause_s)
        self._tidy(pod)
        self._spawn_task(self._fill_later(place))

    async def _fill_later(self, place: Place) -> None:
        await asyncio.sleep(place.pause_s)
        await self._fill(place)

    async def _restart_model(self, place: Place, pod: LocalPod) -> None:
        young = self._now() - pod.model_started_s < limits.restart_young_s
        place.model_pause_s = pause_after(place.model_pause_s, young, 0.0)
        await asyncio.sleep(place.model_pause_s)
        if place.pod is pod and not pod.ending:
            await self._start_model(place, pod)

    async def _end(self, places: list[Place], grace_s: float) -> None:
        """The graph ends, so nothing is handed over: SIGINT to proxies (models follow them), SIGKILL to who
        has not ended after `grace_s`."""
        pods = [place.pod for place in places if place.pod is not None]
        for pod in pods:
            send(pod.proxy_pid, signal.SIGINT)
        deadline = self._now() + grace_s
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                while any(pod.proxy_pid or pod.model_pid for pod in pods):
                    self._some_end.clear()
                    await self._some_end.wait()
        for pod in pods:
            send(pod.model_pid, signal.SIGKILL)
            send(pod.proxy_pid, signal.SIGKILL)

    async def _reaped(self) -> None:
        """Hear of the end of every model that was not forked; they have been killed. What the kernel does not
        let go is left to it."""
        if self._reapers:
            _, stuck = await asyncio.wait(self._reapers, timeout=limits.process_start_s)
            for task in stuck:
                task.cancel()

    # -- small things ----------------------------------------------------------------------------------------

    def _socket(self, instance: InstanceId) -> Path:
        return self._memory / f"{instance}.sock"

    def _peer_socket(self, instance: InstanceId) -> Path:
        """Where its peers connect: between processes of one machine a Unix socket costs a third of a TCP
        connection."""
        return self._memory / f"{instance}.peers"

    def _log(self, name: str) -> Path:
        return self.home.logs / f"{name}.log"

    async def _rotate_logs(self) -> None:
        """Cut logs that have become too long."""
        while True:
            await asyncio.sleep(log_check_s)
            for path in self.home.logs.glob("*.log"):
                if path.name == "supervisor.log":
                    continue
                try:
                    if path.stat().st_size > log_bytes_max:
                        await asyncio.to_thread(cut, path, log_bytes_max)
                except OSError as error:  # a full disk ends no graph
                    log.warning("log %s is not rotated: %s", path, error)

    def _note_end(self, place: Place, pod: LocalPod, status: int) -> None:
        """Remember a model that failed by itself while young; one that follows its proxy ends with 0."""
        if status == 0 or self._now() - pod.model_started_s >= limits.restart_young_s:
            place.ends = Ends()
            return
        lines = self._log_end(self._log(f"{pod.instance}.model"))
        place.ends = place.ends.add(FailureInfo(place.of, pod.instance, status, lines))

    def _note_own_end(self, place: Place, pod: LocalPod, status: int) -> None:
        """Remember a proxy, frontend or manager that failed while young. One that the graph has given up ends
        by itself."""
        if status in (0, EXIT_STOPPED) or self._now() - pod.started_s >= limits.restart_young_s:
            place.own_ends = Ends()
            return
        kind = {FRONTEND: "frontend", MANAGER: "manager"}.get(place.of, "proxy")
        failure = FailureInfo(
            place.of if kind == "proxy" else "",
            pod.instance,
            status,
            self._log_end(self._log(pod.instance)),
            kind,
        )
        place.own_ends = place.own_ends.add(failure)

    @staticmethod
    def _log_end(path: Path) -> tuple[str, ...]:
        """The end of a log; nothing if there is none."""
        try:
            lines = last_lines(path, failure_lines_max, failure_bytes_max)
        except OSError:
            return ()
        return tuple(shortened(line, failure_line_chars_max) for line in lines)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _spawn_task(
        self, work: Coroutine[object, object, None], among: set[asyncio.Task[None]] | None = None
    ) -> None:
        """Run `work` beside the rest, held in `among` (if not given: what `stop` cancels). If it fails, so
        does the run."""
        held = self._tasks if among is None else among
        task = asyncio.get_running_loop().create_task(work)
        held.add(task)
        task.add_done_callback(held.discard)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and not self.failed.done():
            expected = isinstance(error, CannotWarm)
            self.failed.set_result(str(error) if expected else f"{type(error).__name__}: {error}")


def _said(status: int) -> str:
    return said(status) if status < 0 else f"status {status}"
