"""The numbers of the paper (Zhao et al., DSN 2020), to stand beside ours: Table I, Table II, Figure 10."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """One service in the paper. Latencies are of one batch of 64, recoveries of a stateful primary, all ms.
    `bare`: bare metal, where it is given."""

    bare: float | None
    latency: dict[str, float]
    recovery: dict[str, float]


def _published(bare: float | None, *values: float) -> Published:
    modes = ("NonStop", "BufferedOutputs", "StopAndCopy", "Remus")
    recoveries = ("NonStop", "Remus", "LineageStash")
    return Published(
        bare, dict(zip(modes, values[:4], strict=True)), dict(zip(recoveries, values[4:], strict=True))
    )


PUBLISHED = {
    "SA": _published(1570.65, 1604.66, 1640.32, 1664.12, 1671.88, 116.12, 109.23, 124_430),
    "SP": _published(None, 123.02, 152.92, 172.41, 210.45, 142.43, 123.12, 32_040),
    "AP": _published(None, 289.06, 320.18, 349.80, 375.94, 150.01, 119.01, 56_940),
    "FD": _published(None, 224.94, 252.05, 271.42, 300.86, 143.25, 127.34, 47_820),
    "OLV": _published(None, 292.47, 450.23, 426.13, 508.64, 254.19, 315.42, 62_100),
    "OLM": _published(21.88, 22.31, 32.90, 35.04, 43.26, 134.74, 141.84, 21_090),
}
"""Where bare metal is not given, NonStop / 1.02 is taken for it, as the emulated times do."""

CORRELATED = {"SP o3+o4": 344.79, "AP o2+o3": 172.24, "AP rollback": 731.24}
STATELESS_MS = 320.45
BARE_SHARE = 1.02


def bare_ms(service: str) -> float:
    """Bare metal in the paper, or what is taken for it."""
    published = PUBLISHED[service]
    return published.bare or published.latency["NonStop"] / BARE_SHARE
