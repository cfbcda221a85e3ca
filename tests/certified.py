"""Folders of certificates as a process is given them (`hams_wire.tls`), by the code that makes them for
graphs on Kubernetes."""

import datetime
from pathlib import Path

from hams_operator.controller.certificates import Authority, Subject, bundle, fresh_authority, issue
from hams_wire import tls

IDENTITY = "spiffe://hams/default/g"


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def authority(name: str = "g") -> Authority:
    return fresh_authority(name, now(), 30)


def folder(
    directory: Path,
    signer: Authority,
    *others: Authority,
    identity: str = IDENTITY,
    shown: str | None = None,
    at: datetime.datetime | None = None,
    days: int = 7,
) -> Path:
    """`others` are trusted as well; `shown`: the identity in the certificate, if it is not the one asked of
    peers; `at`: when it was made."""
    certificate, key = issue(signer, Subject(uris=(shown or identity,)), at or now(), days)
    directory.mkdir(exist_ok=True)
    files = {
        tls.CERTIFICATE: certificate,
        tls.KEY: key,
        tls.AUTHORITY: bundle((signer, *others)),
        tls.IDENTITY: identity.encode(),
        tls.PROBE_TOKEN: b"probes",
        tls.METRICS_TOKEN: tls.sealed(b"metrics"),
    }
    for name, data in files.items():
        (directory / name).write_bytes(data)
    return directory
