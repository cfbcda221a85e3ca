"""A node: namespaces of its own, and the process 1 that starts its programs, starts them again, and reaps.

SIGKILL of that process 1 is the crash of a node: the kernel ends every process in it, containers included,
and with the last one go its mounts, interfaces and firewall rules. There is nothing to unmount, so taking a
cluster down is killing, and removing folders.

`python -m e2e.cluster.node STATE CACHE NUMBER` is process 1; nobody but `start` calls it.
"""

import ctypes
import http.client
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path

from e2e.cluster.commands import before_others, run, until
from e2e.cluster.components import API, Component, components
from e2e.cluster.layout import API_PORT, HISTORY, ROOT, Folders, node_address, node_name

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWPID, CLONE_NEWNET = (
    0x20000,
    0x4000000,
    0x8000000,
    0x20000000,
    0x40000000,
)
MS_BIND, MS_REC, MS_PRIVATE, MS_SHARED = 4096, 16384, 1 << 18, 1 << 20
RESTART_PAUSE_S = 0.5
POLL_S = 0.05
GO_GARBAGE_PERCENT = "60"
"""GOGC of the components: less memory for a little more time."""
CONTROL_NICE = -10
"""Of each program of the control plane. Beside pods that start it would get a seventeenth of the cores: nodes
that beat were called NotReady, and controllers lost their Leases."""
BRIDGE = "02:00:00:00:00:01"
SYSCTLS = {
    "net/ipv4/ip_forward": 1,
    "net/bridge/bridge-nf-call-iptables": 1,
    "net/ipv4/conf/all/rp_filter": 0,
}

_LIBC = ctypes.CDLL(None, use_errno=True)


def check(status: int) -> None:
    """Raise OSError for a C call that failed."""
    if status:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def enter_network(pid: int) -> None:
    """This process goes on in the network of another."""
    handle = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    try:
        check(_LIBC.setns(handle, CLONE_NEWNET))
    finally:
        os.close(handle)


def mount(
    source: str | Path | None,
    target: str | Path,
    kind: str | None = None,
    flags: int = 0,
    data: str | None = None,
) -> None:
    """mount(2)."""
    words = [None if part is None else str(part).encode() for part in (source, target, kind)]
    check(_LIBC.mount(*words, flags, None if data is None else data.encode()))


def birth(pid: int) -> str:
    """When a process was started; with its pid this names it. Raises OSError when there is none."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]


def state_of(pid: int) -> str:
    """One letter, as in /proc: Z is a zombie. Empty when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return ""


def write_pid(file: Path, pid: int) -> None:
    """Note a process so that no later one is taken for it."""
    file.write_text(f"{pid} {birth(pid)}")


def read_pid(file: Path) -> int | None:
    """The noted process, if it is that very one and lives."""
    try:
        pid, born = file.read_text().split()
        return int(pid) if birth(int(pid)) == born and state_of(int(pid)) != "Z" else None
    except (OSError, ValueError):
        return None


def node_pid(folders: Folders, number: int) -> int | None:
    """Process 1 of a node, as seen from here; None when the node does not run."""
    return read_pid(folders.node(number) / "pid")


def component_pid(folders: Folders, number: int, name: str) -> int | None:
    """A program of a node: a direct child of its process 1."""
    first = node_pid(folders, number)
    if first is None:
        return None
    for child in Path(f"/proc/{first}/task/{first}/children").read_text().split():
        words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
        if os.path.basename(words[0].decode()) == name:
            return int(child)
    return None


def start(folders: Folders, number: int) -> int:
    """fork, unshare, fork, exec: the second child is process 1 of the node. Returns its pid as seen from
    here."""
    read, write = os.pipe()
    middle = os.fork()
    if middle == 0:
        try:
            os.setsid()
            check(_LIBC.unshare(CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET))
            pid = os.fork()
            if pid:
                os.write(write, str(pid).encode())
                os._exit(0)
            os.close(read)
            os.close(write)
            log = os.open(folders.node(number) / "init.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(os.open(os.devnull, os.O_RDWR), 0)
            os.dup2(log, 1)
            os.dup2(log, 2)
            # locks and pipes of whoever started the cluster are not the node's
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))
            os.chdir(ROOT)
            words = [
                sys.executable,
                "-u",
                "-m",
                "e2e.cluster.node",
                str(folders.state),
                str(folders.cache),
                str(number),
            ]
            os.execve(words[0], words, {**os.environ, "PYTHONPATH": str(ROOT)})
        except OSError as error:
            os.write(2, f"node {number}: {error}\n".encode())
        os._exit(1)
    os.close(write)
    os.waitpid(middle, 0)
    said = os.read(read, 32)
    os.close(read)
    if not said:
        raise OSError(f"node {number} did not start: namespaces need root")
    pid = int(said)
    write_pid(folders.node(number) / "pid", pid)
    return pid


def kill(folders: Folders, number: int) -> None:
    """The node crashes. Returns when its last process has ended."""
    pid = node_pid(folders, number)
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
        until(lambda: state_of(pid) in ("", "Z"), 30, f"end of node {number}", 0.01)
    (folders.node(number) / "pid").unlink(missing_ok=True)


# -- inside the node -----------------------------------------------------------------------------------------


def _prepare(folder: Path, number: int) -> None:
    """File system, host name, sysctls, the bridge of node 0."""
    mount(None, "/", flags=MS_REC | MS_PRIVATE)
    mount(None, "/", flags=MS_REC | MS_SHARED)  # mount propagation of volumes works inside the node
    mount("proc", "/proc", "proc")
    mount("tmpfs", "/run", "tmpfs", 0, "mode=755")
    mount(folder / "lib", "/var/lib", flags=MS_BIND)
    mount(folder / "log", "/var/log", flags=MS_BIND)
    mount(folder.parent / "history", HISTORY, flags=MS_BIND)
    socket.sethostname(node_name(number))
    run("ip", "link", "set", "lo", "up")
    for name, value in SYSCTLS.items():
        try:
            Path("/proc/sys", name).write_text(str(value))
        except OSError as error:
            print(f"sysctl {name}: {error}")
    if number == 0:
        # With an address of its own, for else it would take the lowest of its ports': who leaves would change
        # it, and nobody be told.
        run("ip", "link", "add", "nodes", "address", BRIDGE, "type", "bridge")
        run("ip", "addr", "add", f"{node_address(0)}/24", "dev", "nodes")
        run("ip", "link", "set", "nodes", "up")


def _there(what: str, pki: Path) -> bool:
    """Whether what a component waits for has come."""
    try:
        if what == API:
            context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
            connection = http.client.HTTPSConnection(node_address(0), API_PORT, timeout=1, context=context)
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        kind, _, address = what.partition(":")
        if kind == "file":
            return os.path.exists(address)
        host, _, port = address.rpartition(":")
        with socket.socket(socket.AF_UNIX if kind == "unix" else socket.AF_INET) as probe:
            probe.settimeout(1)
            probe.connect(address if kind == "unix" else (host, int(port)))
        return True
    except (OSError, http.client.HTTPException):
        return False


def _reap(running: dict[str, int], ended: dict[str, float]) -> None:
    """Process 1 reaps everything, the shims of containers too."""
    while True:
        try:
            pid, code = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        for name, known in list(running.items()):
            if known == pid:
                print(f"{time.time():.3f} exit {name} status {os.waitstatus_to_exitcode(code)}")
                del running[name]
                ended[name] = time.monotonic()


def supervise(folders: Folders, number: int) -> None:
    """Start the node's programs and start them again for ever; STATE/NODE/stop/NAME keeps one from being
    started."""
    folder = folders.node(number)
    _prepare(folder, number)
    (folder / "net-ready").touch()
    wanted: list[Component] = components(folders, number)
    running: dict[str, int] = {}
    ended: dict[str, float] = {}
    met: set[str] = set()
    environment = {
        "PATH": f"{folders.bin}:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/root",
        "GOGC": GO_GARBAGE_PERCENT,
    }
    while True:
        for component in wanted:
            name = component.name
            paused = time.monotonic() - ended.get(name, -RESTART_PAUSE_S) < RESTART_PAUSE_S
            if name in running or paused or (folder / "stop" / name).exists():
                continue
            met.update(what for what in component.after if what not in met and _there(what, folders.pki))
            if not met.issuperset(component.after):
                continue
            with (folder / "log" / f"{name}.log").open("ab") as log:
                child = subprocess.Popen(
                    component.command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environment,
                    cwd="/",
                    start_new_session=component.control,
                )
            if component.control:
                before_others(child.pid, CONTROL_NICE)
            child.returncode = 0  # `_reap` waits for it, not this object
            running[name] = child.pid
            print(f"{time.time():.3f} start {name} pid {child.pid}")
        _reap(running, ended)
        time.sleep(POLL_S)


if __name__ == "__main__":
    supervise(Folders(cache=Path(sys.argv[2]), state=Path(sys.argv[1])), int(sys.argv[3]))
