"""Builds the stages of a Dockerfile: each is an overlay of its base's layers with one writable layer on top,
filled by its steps.

Every step runs in a mount namespace of its own process, which takes its mounts along when it ends, and
without a network: what an image is made from is in the build context. Needs root.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from images.local.dockerfile import Copy, Run, Set, Stage, parse
from images.local.oci import Config, Image, Layer, pack

PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


class BuildFailed(RuntimeError):
    """A step did not succeed; says which."""


def build(
    file: Path, context: Path, given: Mapping[str, str], work: Path, find: Callable[[str], Image]
) -> Image:
    """Build the last stage of a Dockerfile. `find` knows the images that FROM names; `work` is emptied first
    and holds the layers afterwards.

    What was built from the same before is taken as it is. Raises BuildFailed, BadDockerfile, KeyError.
    """
    stages = parse(file.read_text(), given)
    key, note = _made_from(stages, context, find), work / "made-from"
    reuse = note.exists() and note.read_text() == key
    if not reuse:
        shutil.rmtree(work, ignore_errors=True)
    done: dict[str, Image] = {}
    for position, stage in enumerate(stages):
        base = done.get(stage.base) or find(stage.base)
        done[stage.name] = _stage(
            stage, base, context, work / str(position), done, position == len(stages) - 1, reuse
        )
    note.write_text(key)
    return done[stages[-1].name]


def _made_from(stages: list[Stage], context: Path, find: Callable[[str], Image]) -> str:
    """All that the result depends on, as one hash: steps, layers below, and what is copied from the
    context."""
    digest = hashlib.sha256(repr(stages).encode())
    own = {stage.name for stage in stages}
    for stage in stages:
        if stage.base not in own:
            digest.update(repr(find(stage.base)).encode())
        for step in stage.steps:
            for source in step.sources if isinstance(step, Copy) and not step.stage else ():
                top = context / source
                for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
                    if path.is_file() and "__pycache__" not in path.parts:
                        digest.update(
                            f"{path.relative_to(context)} {path.stat().st_mode}".encode()
                            + hashlib.sha256(path.read_bytes()).digest()
                        )
    return digest.hexdigest()


def _stage(
    stage: Stage, base: Image, context: Path, work: Path, others: Mapping[str, Image], last: bool, reuse: bool
) -> Image:
    config = base.config
    written = work / "layer"
    acts = []
    for step in stage.steps:
        match step:
            case Set():
                config = _configured(config, step)
            case Copy():
                chain = [str(layer.folder) for layer in others[step.stage].layers] if step.stage else []
                acts.append({"copy": asdict(step), "chain": chain, "folder": config.folder})
            case Run():
                environment = {
                    "PATH": PATH,
                    "HOME": "/tmp",
                    "LC_ALL": "C.UTF-8",
                    **config.environment,
                    **step.arguments,
                }
                acts.append(
                    {
                        "run": step.script,
                        "environment": environment,
                        "folder": config.folder or "/",
                        "user": config.user,
                    }
                )
    if config.folder and config.folder != base.config.folder:
        acts.append({"mkdir": config.folder})
    if not acts:
        return replace(base, config=config)
    if reuse:
        digest = (work / "digest").read_text() if last else ""
        return Image((*base.layers, Layer(written, work / "layer.tar", digest)), config)
    written.mkdir(parents=True)
    plan = {"lower": [str(layer.folder) for layer in base.layers], "context": str(context), "acts": acts}
    (work / "plan.json").write_text(json.dumps(plan))
    root = Path(__file__).resolve().parents[2]
    words = ["unshare", "-m", "-n", "-p", "-f", sys.executable, "-m", "images.local.stages", str(work)]
    status = subprocess.run(
        words, cwd=root, env={**os.environ, "PYTHONPATH": str(root)}, check=False
    ).returncode
    if status:
        raise BuildFailed(f"a step of stage {stage.name} failed, see above")
    gone = [path for path in written.rglob("*") if path.is_char_device()]
    if gone and last:
        raise BuildFailed(
            f"stage {stage.name} removes files of its base ({gone[0].relative_to(written)}): the local "
            "builder keeps no such layers"
        )
    if not last:
        return Image((*base.layers, Layer(written, work / "layer.tar", "")), config)
    layer = pack(written, work / "layer.tar")
    (work / "digest").write_text(layer.digest)
    return Image((*base.layers, layer), config)


def _configured(config: Config, step: Set) -> Config:
    match step.what:
        case "ENV":
            return replace(
                config, environment={**config.environment, **dict(word.split("=", 1) for word in step.words)}
            )
        case "USER":
            return replace(config, user=step.words[0])
        case "WORKDIR":
            return replace(config, folder=step.words[0])
        case "ENTRYPOINT":
            return replace(config, entrypoint=step.words, command=())
        case _:
            return replace(config, command=step.words)


# -- in the namespaces of one stage --------------------------------------------------------------------------


def _overlay(lower: list[str], target: Path, upper: Path | None, work: Path) -> None:
    """Mount layers, the topmost last in `lower`; with `upper` writable."""
    target.mkdir(parents=True, exist_ok=True)
    empty = work / "empty"
    empty.mkdir(exist_ok=True)
    options = "lowerdir=" + ":".join(
        [*reversed(lower), *([] if lower and (upper or len(lower) > 1) else [str(empty)])]
    )
    if upper is not None:
        scratch = work / "scratch"
        scratch.mkdir(exist_ok=True)
        options += f",upperdir={upper},workdir={scratch}"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, str(target)], check=True)


def _within(root: Path, path: str, folder: str) -> Path:
    return root / (path if path.startswith("/") else f"{folder}/{path}").lstrip("/")


def _copy(act: dict[str, Any], context: Path, root: Path, work: Path, number: int) -> None:
    step = Copy(**act["copy"])
    source_root = context
    if step.stage:
        source_root = work / f"from-{number}"
        _overlay(act["chain"], source_root, None, work)
    target = _within(root, step.target, act["folder"])
    for source in step.sources:
        result = source_root / source.lstrip("/")
        if not result.exists():
            raise BuildFailed(f"COPY {source}: not there")
        if result.is_dir():  # the content of a folder is copied, not the folder
            target.mkdir(parents=True, exist_ok=True)
            words = ["cp", "-a", "--no-preserve=ownership", f"{result}/.", str(target)]
        else:
            into = target / result.name if step.target.endswith("/") or target.is_dir() else target
            into.parent.mkdir(parents=True, exist_ok=True)
            words = ["cp", "-a", "--no-preserve=ownership", str(result), str(into)]
        subprocess.run(words, check=True)
    if not step.stage:  # as .dockerignore says
        for junk in [*target.rglob("__pycache__")]:
            shutil.rmtree(junk)
    if step.owner:
        subprocess.run(["chown", "-R", step.owner, str(target)], check=True)


def _run(act: dict[str, Any], root: Path) -> None:
    identity = ["--userspec", act["user"]] if act["user"] else []
    program = shutil.which("chroot", path=os.environ["PATH"] + ":/usr/sbin") or "chroot"
    words = [program, *identity, str(root), "/bin/sh", "-ec", f"cd {act['folder']}; {act['run']}"]
    done = subprocess.run(words, env=act["environment"], check=False)
    if done.returncode:
        raise BuildFailed(f"RUN {act['run']}: exit code {done.returncode}")


def perform(work: Path) -> None:
    """Do the acts of one stage; the caller has unshared mounts, network and pids."""
    plan = json.loads((work / "plan.json").read_text())
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    root = work / "root"
    _overlay(plan["lower"], root, work / "layer", work)
    runs = any("run" in act for act in plan["acts"])
    if runs:
        for name in ("proc", "dev"):
            (root / name).mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", "proc", "proc", str(root / "proc")], check=True)
        subprocess.run(["mount", "--bind", "/dev", str(root / "dev")], check=True)
    for number, act in enumerate(plan["acts"]):
        if "copy" in act:
            _copy(act, Path(plan["context"]), root, work, number)
        elif "run" in act:
            _run(act, root)
        else:
            _within(root, act["mkdir"], "/").mkdir(parents=True, exist_ok=True)


if __name__ == "__main__":
    try:
        perform(Path(sys.argv[1]))
    except (BuildFailed, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr)
        sys.exit(1)
