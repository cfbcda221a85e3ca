"""Who the parts of a graph are: authorities and what they sign, over years, and the Secrets that hold
them."""

import datetime
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from cryptography import x509

from hams_operator.controller import limits
from hams_operator.controller.certificates import (
    Authority,
    Subject,
    authorities,
    authority_days,
    authority_overlap_days,
    authority_renew_days,
    bundle,
    fresh_authority,
    good,
    issue,
    rotated,
    signer,
)
from hams_operator.controller.etcd_keys import EtcdKeys, NoEtcdKeys, user_of
from hams_operator.controller.identities import IssuedIdentities, metrics_token
from hams_operator.controller.kube import KubeError
from hams_operator.controller.options import ControllerOptions
from hams_operator.controller.secrets import NotOwned, data_of, keep
from hams_operator.plan.names import GraphRef, Settings
from hams_wire import records, tls
from hams_wire.coordination import etcd_users
from hams_wire.coordination.etcd import EtcdCoordination

from .fakes import FakeKube

UID = "0a1b2c3d-0000-4000-8000-000000000001"
PLACE = GraphRef("pair", "shop", UID)
BEGIN = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
DAY = datetime.timedelta(days=1)
ETCD = (
    "https://hams-etcd-0.hams-etcd-peers.hams-system.svc:2379,"
    "https://hams-etcd-1.hams-etcd-peers.hams-system.svc:2379"
)


@dataclass
class World:
    """A controller's part of the world, on a day of one's choice."""

    kube: FakeKube = field(default_factory=FakeKube)
    now: datetime.datetime = BEGIN

    def identities(self, *, keys: EtcdKeys | None = None) -> IssuedIdentities:
        """Of a controller that has just been started."""
        return IssuedIdentities(self.kube, "hams-system", "hams-metrics", None, keys, lambda: self.now)

    def keys(self, **more: Any) -> EtcdKeys:
        options = ControllerOptions(
            Settings(etcd=ETCD), "c", "hams-system", **{"etcd_members_secret": "hams-etcd-tls", **more}
        )
        return EtcdKeys(self.kube, options, lambda: self.now)

    def secret(self, namespace: str, name: str) -> dict[str, bytes]:
        return dict(data_of(self.kube.items["Secret", namespace, name]))

    @property
    def mounted(self) -> dict[str, bytes]:
        return self.secret("shop", "pair-hams-tls")


def parsed(certificate: bytes) -> x509.Certificate:
    return x509.load_pem_x509_certificate(certificate)


# ---- authorities ----


def test_an_authority_is_replaced_with_an_overlap_long_enough_for_everybody_and_everything() -> None:
    """Day by day over six years: who signs has been trusted for a day by then, and who has signed is trusted
    until all of it has ended."""
    held: tuple[Authority, ...] = ()
    trusted_since: dict[bytes, int] = {}
    last_leaf: dict[bytes, int] = {}
    signed: list[bytes] = []
    for day in range(6 * 365):
        now = BEGIN + day * DAY
        held = rotated(held, "g", now)
        assert len(held) <= 2
        for item in held:
            assert item.ends > now
            trusted_since.setdefault(item.certificate, day)
        signs = signer(held, now)
        assert (
            day == 0
            or day - trusted_since[signs.certificate] >= authority_overlap_days
            or signs.certificate in signed
        )
        if signs.certificate not in signed:
            signed.append(signs.certificate)
        last_leaf[signs.certificate] = day
        for certificate, since in last_leaf.items():
            if day - since < limits.leaf_days:
                assert certificate in {item.certificate for item in held}, "what it signed is still in use"
        assert (signs.ends - now).days >= limits.leaf_days, "a certificate never ends before its time"
    assert len(signed) == 4


def test_what_was_written_is_read_again_and_what_does_not_fit_is_refused() -> None:
    one, other = (fresh_authority(name, BEGIN, 10) for name in ("one", "other"))
    keys = one.key + other.key
    assert authorities(bundle((one, other)), keys) == (one, other)
    for certificates, given in (
        (bundle((other, one)), keys),
        (bundle((one,)), keys),
        (b"x" + one.certificate[40:], one.key),
    ):
        with pytest.raises(ValueError, match=r".+"):
            authorities(certificates, given)


@pytest.mark.parametrize(
    "change",
    [
        "another authority",
        "another name",
        "another host",
        "another identity",
        "only for servers",
        "another key",
        "near its end",
        "garbage",
    ],
)
def test_a_certificate_is_good_only_for_what_it_was_made_for(change: str) -> None:
    authority = fresh_authority("a", BEGIN, 100)
    subject = Subject("n", ("h",), ("spiffe://hams/a/b",))
    certificate, key = issue(authority, subject, BEGIN, 30)
    now = BEGIN
    assert good(certificate, key, authority, subject, now, 10)
    match change:
        case "another authority":
            authority = fresh_authority("a", BEGIN, 100)
        case "another name":
            subject = Subject("m", subject.hosts, subject.uris)
        case "another host":
            subject = Subject("n", ("h", "i"), subject.uris)
        case "another identity":
            subject = Subject("n", subject.hosts, ("spiffe://hams/a/c",))
        case "only for servers":
            subject = Subject("n", subject.hosts, subject.uris, dials=False)
        case "another key":
            key = issue(authority, subject, BEGIN, 30)[1]
        case "near its end":
            now = BEGIN + 21 * DAY
        case "garbage":
            certificate = certificate[:-40]
    assert not good(certificate, key, authority, subject, now, 10)


# ---- a graph ----


async def test_a_graph_gets_an_authority_whose_key_stays_with_the_controller() -> None:
    world = World()
    token = await world.identities().ensure(PLACE)
    secret = world.secret("hams-system", f"graph-{UID}")
    assert secret["ca.key"].startswith(b"-----BEGIN PRIVATE KEY")
    assert set(world.mounted) == {"ca.crt", "tls.crt", "tls.key", "identity", "probe-token", "metrics-token"}
    assert secret["ca.key"] not in world.mounted.values()
    assert world.mounted["identity"] == b"spiffe://hams/shop/pair"
    assert world.mounted["probe-token"].decode() == token == secret["probe-token"].decode()
    owner = world.kube.items["Secret", "shop", "pair-hams-tls"]["metadata"]["ownerReferences"][0]
    assert owner["uid"] == UID
    names = (
        parsed(world.mounted["tls.crt"]).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    )
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == ["spiffe://hams/shop/pair"]


async def test_two_graphs_share_nothing_but_what_the_token_of_metrics_is_compared_with() -> None:
    world = World()
    identities = world.identities()
    await identities.ensure(PLACE)
    await identities.ensure(GraphRef("other", "shop", "another"))
    other = world.secret("shop", "other-hams-tls")
    assert {name for name in other if other[name] == world.mounted[name]} == {"metrics-token"}
    token = await metrics_token(world.kube, "hams-system", "hams-metrics")
    assert world.mounted["metrics-token"] == tls.sealed(token)
    assert not [name for name in other if token in other[name]], (
        "who reads the Secret of one graph would have all of them"
    )


async def test_nothing_is_written_while_everything_is_as_it_should_be() -> None:
    world = World()
    identities = world.identities()
    await identities.ensure(PLACE)
    before, asked = list(world.kube.calls), world.kube.asked
    await identities.ensure(PLACE)
    assert world.kube.asked == asked, "what was looked at a moment ago is not looked at again"
    await world.identities().ensure(PLACE)
    assert world.kube.calls == before


async def test_a_fresh_graph_is_given_its_secrets_without_a_look_and_keeps_them_if_it_is_none() -> None:
    world = World()
    await world.identities().ensure(PLACE)
    first = world.mounted
    assert await world.identities().ensure(PLACE, fresh=True) == first["probe-token"].decode()
    assert world.mounted == first
    other = World()
    await metrics_token(other.kube, "hams-system", "hams-metrics")
    before = other.kube.asked
    await other.identities().ensure(PLACE, fresh=True)
    assert other.kube.asked - before == 3, "the token is read, both Secrets of the graph are made"


async def test_what_is_missing_or_near_its_end_is_made_again_and_the_rest_stays() -> None:
    world = World()
    await world.identities().ensure(PLACE)
    first = world.mounted
    world.now += (limits.leaf_days - limits.leaf_renew_days + 1) * DAY
    await world.identities().ensure(PLACE)
    assert {name for name in first if first[name] != world.mounted[name]} == {"tls.crt", "tls.key"}
    del world.kube.items["Secret", "shop", "pair-hams-tls"]
    await world.identities().ensure(PLACE)
    assert world.mounted["ca.crt"] == first["ca.crt"]
    world.kube.items["Secret", "shop", "pair-hams-tls"]["data"]["tls.key"] = "not base64"
    await world.identities().ensure(PLACE)
    assert world.mounted["tls.key"].startswith(b"-----BEGIN PRIVATE KEY")


async def test_an_authority_near_its_end_hands_over_in_three_steps() -> None:
    world = World()
    await world.identities().ensure(PLACE)
    old = world.mounted["ca.crt"]
    world.now += (authority_days - authority_renew_days + 1) * DAY
    await world.identities().ensure(PLACE)
    both, leaf = world.mounted["ca.crt"], parsed(world.mounted["tls.crt"])
    assert both.startswith(old)
    assert len(both) > len(old)
    leaf.verify_directly_issued_by(parsed(old))
    world.now += (authority_overlap_days + 1) * DAY
    await world.identities().ensure(PLACE)
    fresh = parsed(both[len(old) :])
    parsed(world.mounted["tls.crt"]).verify_directly_issued_by(fresh)
    assert world.mounted["ca.crt"] == both
    world.now += (limits.leaf_days + 1) * DAY
    await world.identities().ensure(PLACE)
    assert world.mounted["ca.crt"] == both[len(old) :]


async def test_a_secret_of_somebody_else_is_not_touched() -> None:
    world = World()
    theirs = {
        "kind": "Secret",
        "metadata": {"name": "pair-hams-tls", "namespace": "shop"},
        "data": {"tls.key": "bWluZQ=="},
    }
    world.kube.put(theirs)
    with pytest.raises(NotOwned, match="pair-hams-tls"):
        await world.identities().ensure(PLACE)
    assert world.mounted == {"tls.key": b"mine"}


async def test_of_two_controllers_one_makes_it_and_both_have_it() -> None:
    world = World()
    get, first = world.kube.get, True

    async def late(*arguments: Any) -> Any:
        nonlocal first
        read = await get(*arguments)
        if first:
            first = False
            await metrics_token(world.kube, "hams-system", "hams-metrics")  # the other one, just now
        return read

    world.kube.get = late  # type: ignore[method-assign]
    result = await metrics_token(world.kube, "hams-system", "hams-metrics")
    assert result == world.secret("hams-system", "hams-metrics")["token"]


async def test_a_graph_that_is_over_leaves_nothing_behind() -> None:
    world = World()
    identities = world.identities()
    await identities.ensure(PLACE)
    await identities.forget(UID)
    assert ("Secret", "hams-system", f"graph-{UID}") not in world.kube.items
    await identities.forget(UID)


async def test_other_failures_are_told() -> None:
    world = World()
    world.kube.fail(2, KubeError(403, "forbidden"))
    with pytest.raises(KubeError, match="forbidden"):
        await keep(world.kube, "hams-system", "x", lambda held: {"a": b"b"})


async def test_a_conflict_that_does_not_end_is_told() -> None:
    world = World()
    tries = limits.secret_tries
    for number in range(tries):
        world.kube.fail(2 * (number + 1), KubeError(409, "quota: try again"))
    with pytest.raises(KubeError, match="quota"):
        await keep(world.kube, "hams-system", "x", lambda held: {"a": b"b"})
    assert world.kube.asked == 2 * tries
    await keep(world.kube, "hams-system", "x", lambda held: {"a": b"b"})
    assert world.secret("hams-system", "x") == {"a": b"b"}


# ---- etcd ----


async def test_etcd_members_the_controller_and_graphs_get_what_each_needs_and_no_more() -> None:
    world = World()
    keys = world.keys()
    await keys.reconcile()
    members, secret = (
        world.secret("hams-system", "hams-etcd-tls"),
        world.secret("hams-system", "hams-etcd-ca"),
    )
    assert not {value for name, value in secret.items() if name.endswith(".key")} & set(members.values())
    hosts = (
        parsed(members["tls.crt"])
        .extensions.get_extension_for_class(x509.SubjectAlternativeName)
        .value.get_values_for_type(x509.DNSName)
    )
    assert set(hosts) == {
        "hams-etcd-0.hams-etcd-peers.hams-system.svc",
        "hams-etcd-1.hams-etcd-peers.hams-system.svc",
        "hams-etcd.hams-system.svc",
        "localhost",
    }
    assert parsed(members["tls.crt"]).subject.rfc4514_string() == "", "it would be taken for a user"
    parsed(members["peer.crt"]).verify_directly_issued_by(parsed(secret["peer-ca.crt"]))
    await world.identities(keys=keys).ensure(PLACE)
    user = parsed(world.mounted["etcd.crt"])
    assert user.subject.rfc4514_string() == f"CN={user_of(UID)}"
    user.verify_directly_issued_by(parsed(secret["ca.crt"]))
    assert (
        secret["ca.crt"] != secret["peer-ca.crt"] != world.mounted["ca.crt"] != world.mounted["etcd-ca.crt"]
    )


async def test_etcds_certificates_are_replaced_before_they_end_and_its_authorities_stay() -> None:
    world = World()
    keys = world.keys()
    await keys.reconcile()
    assert keys.tls.certificate is not None
    members, secret, own = (
        world.secret("hams-system", "hams-etcd-tls"),
        world.secret("hams-system", "hams-etcd-ca"),
        keys.tls.certificate.read_bytes(),
    )
    await keys.reconcile()
    assert (members, own) == (world.secret("hams-system", "hams-etcd-tls"), keys.tls.certificate.read_bytes())
    world.now += 25 * DAY
    await keys.reconcile()
    after = world.secret("hams-system", "hams-etcd-tls")
    assert {name for name in after if after[name] == members[name]} == {"ca.crt", "peer-ca.crt"}
    assert world.secret("hams-system", "hams-etcd-ca") == secret
    assert keys.tls.certificate.read_bytes() != own


async def test_for_an_etcd_of_ones_own_the_authorities_are_given() -> None:
    world = World()
    keys = world.keys(etcd_secret="theirs", etcd_members_secret="")
    for data in (None, {}, {"ca.crt": b"x", "client-ca.crt": b"y", "client-ca.key": b"z"}):
        if data is not None:
            await keep(world.kube, "hams-system", "theirs", lambda _, data=data: data)  # type: ignore[misc]
        with pytest.raises(NoEtcdKeys, match="expected ca"):
            await keys.reconcile()
    clients = fresh_authority("clients", BEGIN, 100)
    await keep(
        world.kube,
        "hams-system",
        "theirs",
        lambda _: {"ca.crt": b"server's", "client-ca.crt": clients.certificate, "client-ca.key": clients.key},
    )
    calls = list(world.kube.calls)
    await keys.reconcile()
    assert world.kube.calls == calls, "nothing of theirs is written"
    assert keys.trust == b"server's"
    assert keys.client_authority == clients
    assert not keys.own


class Users:
    """Etcd's users, as far as they were asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        self.during = lambda: None
        monkeypatch.setattr(etcd_users, "lock", self._lock)
        monkeypatch.setattr(etcd_users, "allow", self._allow)

    async def _lock(self, etcd: object) -> None:
        self.asked.append("lock")

    async def _allow(self, etcd: object, user: str, prefixes: object, *, fresh: bool) -> None:
        self.asked.append(user)
        self.during()


async def secured(world: World) -> IssuedIdentities:
    keys = world.keys()
    await keys.reconcile()
    etcd = cast(EtcdCoordination, object())  # only handed on
    return IssuedIdentities(world.kube, "hams-system", "hams-metrics", etcd, keys, lambda: world.now)


async def test_an_etcd_that_was_away_or_went_back_is_locked_and_told_its_users_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, users = World(), Users(monkeypatch)
    identities = await secured(world)
    for _ in range(2):
        await identities.ensure(PLACE)
    assert users.asked == ["lock", user_of(UID)], "not at every look"
    identities.doubt()
    await identities.ensure(PLACE)
    assert users.asked == 2 * ["lock", user_of(UID)]


async def test_a_doubt_that_comes_while_etcd_is_asked_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    world, users = World(), Users(monkeypatch)
    identities = await secured(world)
    users.during = identities.doubt
    await identities.ensure(PLACE)
    users.during = lambda: None
    await identities.ensure(PLACE)
    assert users.asked == 2 * ["lock", user_of(UID)]


async def test_etcd_is_locked_and_told_its_users_again_from_time_to_time_whatever_happens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "certificate_check_s", 0.0)
    world, users = World(), Users(monkeypatch)
    identities = await secured(world)
    for _ in range(2):
        await identities.ensure(PLACE)
    assert users.asked == 2 * ["lock", user_of(UID)]


def test_a_graphs_prefixes_are_those_of_all_its_incarnations() -> None:
    assert records.prefix_of(f"{UID}-r").rstrip("/") == f"/hams/v1/{UID}-r"
