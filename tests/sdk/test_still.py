"""Leaves of which little changes: the kernel says what was written of them, and captures miss nothing."""

import os
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sdk.capturing import CHUNK, Proxy, whole

from hams_sdk import pages, still
from hams_sdk.errors import StateFault
from hams_sdk.pages import PAGE_NBYTES, TrackingUnavailable, WrittenPages
from hams_sdk.state import State
from hams_sdk.still import BUSY_CAPTURES, QUIET_CAPTURES, SWITCH, WATCHED_NBYTES_MIN


def _why_not() -> str:
    try:
        WrittenPages().close()
    except TrackingUnavailable as error:
        return str(error)
    return ""


WHY_NOT = _why_not()
tracked = pytest.mark.skipif(bool(WHY_NOT), reason=f"this kernel tracks no writes: {WHY_NOT}")
LARGE = 4 * WATCHED_NBYTES_MIN


class Switching:
    """A holder whose leaves are others from time to time."""

    def __init__(self) -> None:
        self.leaves: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        return dict(self.leaves)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise NotImplementedError


def watched(array: Any, **more: Any) -> tuple[State, Proxy]:
    """A state whose leaf `array` is watched, and nothing was written since."""
    state = State({"array": array, **more})
    proxy = Proxy(state)
    for _ in range(QUIET_CAPTURES + 3):
        proxy.capture()
    assert "array" in state.still.watched, state.still.why_not
    assert proxy.compared < 8 * PAGE_NBYTES
    return state, proxy


@tracked
def test_of_a_leaf_that_is_watched_only_what_was_written_is_compared() -> None:
    array = np.zeros(LARGE, dtype=np.uint8)
    state, proxy = watched(array)
    array[LARGE // 2] = 1
    assert proxy.capture() == whole(state)
    assert proxy.copied == CHUNK
    assert proxy.compared <= 4 * PAGE_NBYTES
    array[LARGE // 2] = 1
    assert proxy.capture() == whole(state)
    assert proxy.copied == 0, "written, and the same"
    assert proxy.compared <= 4 * PAGE_NBYTES


def by_a_system_call(array: np.ndarray, at: int) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"\xff" * 100)
    os.readv(reading, [memoryview(array)[at : at + 100]])
    os.close(reading)
    os.close(writing)


def by_a_pointer(array: np.ndarray, at: int) -> None:
    import ctypes

    ctypes.memset(array.ctypes.data + at, 0xEE, 100)


def by_an_alias(array: np.ndarray, at: int) -> None:
    memoryview(array)[at] = 0x77


def by_another_thread(array: np.ndarray, at: int) -> None:
    import threading

    thread = threading.Thread(target=by_an_alias, args=(array, at))
    thread.start()
    thread.join()


def by_giving_the_page_back(array: np.ndarray, at: int) -> None:
    """The kernel hands out a page of zeros at the next look."""
    import ctypes

    begin = (array.ctypes.data + at) // PAGE_NBYTES * PAGE_NBYTES
    dontneed = 4
    libc = ctypes.CDLL(None, use_errno=True)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    assert libc.madvise(begin, PAGE_NBYTES, dontneed) == 0


@tracked
@pytest.mark.parametrize(
    "write",
    [by_a_system_call, by_a_pointer, by_an_alias, by_another_thread, by_giving_the_page_back],
)
def test_no_write_is_missed_however_it_is_made(write: Callable[[np.ndarray, int], None]) -> None:
    array = np.full(LARGE, 5, dtype=np.uint8)
    state, proxy = watched(array)
    for at in (PAGE_NBYTES + 7, LARGE // 2, LARGE - 3 * PAGE_NBYTES):
        write(array, at)
        before = array.copy()
        assert proxy.capture() == whole(state)
        assert (array == before).all()
        assert "array" in state.still.watched
    assert proxy.compared < LARGE // 8


@tracked
def test_what_a_child_process_writes_is_not_ours_and_hides_nothing() -> None:
    array = np.zeros(LARGE, dtype=np.uint8)
    state, proxy = watched(array)
    child = os.fork()
    if not child:
        array[:] = 9
        os._exit(0)
    array[100_000] = 1
    os.waitpid(child, 0)
    assert proxy.capture() == whole(state)
    array[200_000] = 1
    assert proxy.capture() == whole(state)
    assert proxy.copied == CHUNK


@tracked
@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1 << 30))
def test_captures_are_the_state_whatever_is_written_between_them(seed: int) -> None:
    draw = Random(seed)
    torch = pytest.importorskip("torch") if draw.random() < 0.3 else None
    array = np.zeros(WATCHED_NBYTES_MIN + draw.randrange(3 * PAGE_NBYTES), dtype=np.uint8)
    other: Any = np.zeros(WATCHED_NBYTES_MIN // 4 + 77, dtype=np.float32)
    if torch is not None:
        other = torch.zeros(WATCHED_NBYTES_MIN // 4 + 77)
    small = np.zeros(40, dtype=np.int64)
    tail = array[draw.randrange(64) :]
    state = State({"small": small, "array": array, "same": tail, "other": other})
    proxy = Proxy(state)
    for _ in range(30):
        for _ in range(draw.randrange(3)):
            match draw.randrange(7):
                case 0:
                    array[draw.randrange(len(array))] += 1
                case 1:
                    other[draw.randrange(len(other))] += 1
                case 2:
                    tail[draw.randrange(len(tail))] += 1
                case 3:
                    small[3] += 1
                case 4 if draw.random() < 0.2:
                    array[:] = draw.randrange(256)
                case 5 if draw.random() < 0.2:
                    state.loaded()
                case 6 if draw.random() < 0.2:
                    whole(state)
        if draw.random() < 0.05:
            proxy.table = None
        assert proxy.capture() == whole(state)


@tracked
def test_leaves_that_share_memory_are_each_told_what_was_written() -> None:
    array = np.zeros(LARGE, dtype=np.uint8)
    state, proxy = watched(array, view=array[PAGE_NBYTES:-PAGE_NBYTES], again=array)
    assert state.still.watched == {"array", "view", "again"}
    array[LARGE // 2] = 1
    assert proxy.capture() == whole(state)
    assert proxy.copied == 3 * CHUNK


@tracked
def test_a_leaf_that_moves_in_memory_or_in_the_image_is_compared() -> None:
    holder, array = Switching(), np.zeros(LARGE, dtype=np.uint8)
    holder.leaves = {"array": array, "more": b""}
    state = State({"holder": holder})
    proxy = Proxy(state)
    for _ in range(QUIET_CAPTURES + 3):
        proxy.capture()
    assert len(state.still.watched) == 1
    holder.leaves["array"] = np.full(LARGE, 3, dtype=np.uint8)
    assert proxy.capture() == whole(state)
    holder.leaves["array"] = array
    assert proxy.capture() == whole(state)
    for _ in range(QUIET_CAPTURES + 2):
        proxy.capture()
    assert len(state.still.watched) == 1
    holder.leaves["more"] = bytes(1 << 20)
    assert proxy.capture() == whole(state)
    assert proxy.capture() == whole(state)


@tracked
def test_a_leaf_that_is_written_much_is_watched_no_more_for_a_while() -> None:
    array = np.zeros(LARGE, dtype=np.uint8)
    state, proxy = watched(array)
    array[: LARGE // 2] = 1
    assert proxy.capture() == whole(state)
    assert not state.still.watched
    for _ in range(BUSY_CAPTURES):
        proxy.capture()
        assert not state.still.watched
    for _ in range(QUIET_CAPTURES + 2):
        proxy.capture()
    assert state.still.watched


@tracked
def test_after_another_image_became_the_base_all_is_compared() -> None:
    array = np.zeros(LARGE, dtype=np.uint8)
    state, proxy = watched(array)
    array[LARGE // 2] = 1
    proxy.memory.append(bytearray(whole(state)))
    state.loaded()
    assert proxy.capture() == whole(state)
    assert proxy.compared >= LARGE
    assert proxy.capture() == whole(state)
    assert proxy.compared <= 4 * PAGE_NBYTES


@tracked
def test_after_a_capture_that_failed_all_is_compared() -> None:
    array = np.zeros(LARGE, dtype=np.uint8)
    state, proxy = watched(array)
    array[LARGE // 2] = 1

    def no_space(nbytes: int) -> memoryview:
        raise MemoryError

    assert proxy.table is not None
    with pytest.raises(MemoryError):
        state.capture_changed(proxy.table, no_space)
    assert proxy.capture() == whole(state)
    assert proxy.copied == CHUNK


@tracked
def test_a_write_that_the_kernel_does_not_see_ends_the_instance_and_names_the_leaf(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As of a device that writes into pinned memory."""
    array = np.zeros(LARGE, dtype=np.uint8)
    _, proxy = watched(array)
    array[LARGE // 2] = 1
    monkeypatch.setattr(WrittenPages, "written", lambda *_: [])
    monkeypatch.setattr(still, "CHECKED_AGAIN", 1)
    with pytest.raises(StateFault, match=rf'state "array" was changed by a write .* set {SWITCH}=0'):
        proxy.capture()


@tracked
@pytest.mark.parametrize("kind", ["of a file", "shared", "read-only"])
def test_memory_that_others_may_write_is_compared(kind: str, tmp_path: Any) -> None:
    import mmap

    if kind == "of a file":
        array: Any = np.memmap(tmp_path / "array", dtype=np.uint8, mode="w+", shape=(LARGE,))
    elif kind == "shared":
        array = np.frombuffer(mmap.mmap(-1, LARGE), dtype=np.uint8)
    else:
        plain = mmap.mmap(-1, LARGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ)
        begin, end = _range(np.frombuffer(plain, dtype=np.uint8))
        assert not [known for known in pages.private_ranges() if known[0] < end and begin < known[1]]
        return
    state = State({"array": array})
    proxy = Proxy(state)
    for number in range(QUIET_CAPTURES + 3):
        array[number] = 1
        assert proxy.capture() == whole(state)
    assert not state.still.watched
    assert proxy.compared >= LARGE


def _range(array: np.ndarray) -> tuple[int, int]:
    begin = array.ctypes.data
    return begin, begin + array.nbytes // PAGE_NBYTES * PAGE_NBYTES


def test_where_the_kernel_does_not_tell_or_nobody_wants_it_all_is_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: object) -> None:
        raise TrackingUnavailable("userfaultfd: Operation not permitted")

    array = np.zeros(LARGE, dtype=np.uint8)
    for why in ("userfaultfd: Operation not permitted", f"{SWITCH}=0"):
        if why.startswith("user"):
            monkeypatch.setattr(still.WrittenPages, "__init__", refuse)
        else:
            monkeypatch.setenv(SWITCH, "0")
        state = State({"array": array})
        proxy = Proxy(state)
        for number in range(QUIET_CAPTURES + 3):
            array[number] += 1
            assert proxy.capture() == whole(state)
        assert not state.still.watched
        assert state.still.why_not == why
        assert proxy.compared >= LARGE


def test_a_machine_of_another_kind_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages.platform, "machine", lambda: "riscv64")
    with pytest.raises(TrackingUnavailable, match="expected a kernel of x86_64 or aarch64, found riscv64"):
        WrittenPages()


@tracked
def test_ranges_are_asked_for_as_long_as_they_are_watched() -> None:
    array = np.zeros(LARGE, dtype=np.uint8)
    begin = -(-array.ctypes.data // PAGE_NBYTES) * PAGE_NBYTES
    end = begin + LARGE // 2
    written = WrittenPages()
    assert written.written(begin, end) is None
    assert written.watch(begin, end)
    array[begin - array.ctypes.data + PAGE_NBYTES] = 1
    assert written.written(begin, end) == [(begin + PAGE_NBYTES, begin + 2 * PAGE_NBYTES)]
    assert written.written(begin, end) == []
    written.unwatch(begin, end)
    assert written.written(begin, end) is None
    written.unwatch(begin, end)
    written.close()


def fails(state: State, proxy: Proxy) -> None:
    """A capture that fails; as the engine does, the next one is whole."""

    def no_space(nbytes: int) -> memoryview:
        raise MemoryError

    assert proxy.table is not None
    with pytest.raises(MemoryError):
        state.capture_changed(proxy.table, no_space)
    proxy.table = None


@tracked
@pytest.mark.parametrize("other", ["another buffer", "another layout"])
def test_what_a_failed_capture_has_seen_is_no_base(other: str) -> None:
    holder, array = Switching(), np.arange(LARGE, dtype=np.uint8) % 251
    holder.leaves = {"x": array}
    state = State({"holder": holder})
    proxy = Proxy(state)
    for _ in range(QUIET_CAPTURES + 3):
        proxy.capture()
    assert state.still.watched
    array[100] = 1
    fails(state, proxy)
    before = {"a": np.zeros(64_064, dtype=np.uint8)} if other == "another layout" else {}
    holder.leaves = before | {"x": array if before else np.full(LARGE, 7, dtype=np.uint8)}
    assert proxy.capture() == whole(state)
    holder.leaves = {"x": array}
    assert proxy.capture() == whole(state)


@tracked
def test_a_leaf_that_has_gone_is_watched_no_more() -> None:
    holder = Switching()
    state = State({"holder": holder})
    proxy = Proxy(state)
    for number in range(5):
        holder.leaves = {f"session {number}": np.zeros(WATCHED_NBYTES_MIN + PAGE_NBYTES, dtype=np.uint8)}
        for _ in range(QUIET_CAPTURES + 3):
            assert proxy.capture() == whole(state)
        assert state.still.watched == {f"holder/session {number}"}
    holder.leaves = {}
    proxy.capture()
    assert not state.still.watched
    assert not state.still._quiet


@tracked
def test_a_mapped_file_may_have_any_name(tmp_path: Any) -> None:
    import mmap

    name = os.fsencode(str(tmp_path)) + b"/w\xff.bin"
    with open(name, "w+b") as file:
        file.write(bytes(PAGE_NBYTES))
        file.flush()
        mapped = mmap.mmap(file.fileno(), PAGE_NBYTES, prot=mmap.PROT_READ)
    watched(np.zeros(LARGE, dtype=np.uint8))
    mapped.close()
