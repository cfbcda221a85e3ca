"""Users and roles of etcd: one of each per graph, which may read and write the graph's own keys and no
others.

A user has no password: etcd takes the common name of a client's certificate for it. Everything here may be
done again; what is there already is left as it is, as each change of etcd's users makes it refuse, for a
moment, what others have just sent.
"""

from collections.abc import Sequence

from hams_wire.coordination import etcd_pb2 as pb
from hams_wire.coordination.etcd import EtcdCoordination
from hams_wire.coordination.etcd_errors import AlreadyThere, NotThere
from hams_wire.errors import AccessDenied, CoordinationError

ROOT = "root"
"""The user that may do everything, and its role; etcd knows both by this name."""

NOBODY = "etcdserver: user name not found"


async def lock(etcd: EtcdCoordination) -> None:
    """Let nobody in who is not a user. We have to be `root` ourselves. Raises CoordinationError."""
    if ROOT in (await _roles_of(etcd, ROOT) or ()):
        # etcd says yes to it again
        await etcd.administer("AuthEnable", pb.AuthEnableRequest(), pb.AuthEnableResponse)
        return
    await _add_role(etcd, ROOT)
    await _add_user(etcd, ROOT, ROOT)
    await etcd.administer("AuthEnable", pb.AuthEnableRequest(), pb.AuthEnableResponse)


async def allow(etcd: EtcdCoordination, user: str, keys: tuple[str, str], *, fresh: bool = False) -> None:
    """Have a user, with a role of the same name, that may read and write `keys`, from the first to before the
    second. `fresh`: most likely there is no such user yet. One grant: etcd goes through all its users after
    each. Raises CoordinationError."""
    if not fresh and user in (await _roles_of(etcd, user) or ()):
        return  # the last of the steps below
    await _add_role(etcd, user)
    permission = pb.Permission(
        permType=pb.Permission.READWRITE, key=keys[0].encode(), range_end=keys[1].encode()
    )
    grant = pb.AuthRoleGrantPermissionRequest(name=user, perm=permission)
    await etcd.administer("RoleGrantPermission", grant, pb.AuthRoleGrantPermissionResponse)
    await _add_user(etcd, user, user)


async def forget(etcd: EtcdCoordination, user: str) -> None:
    """Remove the user and the role. Raises CoordinationError."""
    if await _roles_of(etcd, user) is not None:
        try:
            await etcd.administer(
                "UserDelete", pb.AuthUserDeleteRequest(name=user), pb.AuthUserDeleteResponse
            )
        except AccessDenied as error:
            if NOBODY not in str(error):
                raise
    try:
        await etcd.administer("RoleDelete", pb.AuthRoleDeleteRequest(role=user), pb.AuthRoleDeleteResponse)
    except NotThere:
        return


async def _roles_of(etcd: EtcdCoordination, user: str) -> Sequence[str] | None:
    """None: there is no such user."""
    try:
        return (
            await etcd.administer("UserGet", pb.AuthUserGetRequest(name=user), pb.AuthUserGetResponse)
        ).roles
    except CoordinationError as error:
        if NOBODY in str(error):
            return None
        raise


async def _add_role(etcd: EtcdCoordination, role: str) -> None:
    try:
        await etcd.administer("RoleAdd", pb.AuthRoleAddRequest(name=role), pb.AuthRoleAddResponse)
    except AlreadyThere:
        return


async def _add_user(etcd: EtcdCoordination, user: str, role: str) -> None:
    request = pb.AuthUserAddRequest(name=user, options=pb.UserAddOptions(no_password=True))
    try:
        await etcd.administer("UserAdd", request, pb.AuthUserAddResponse)
    except AlreadyThere:
        pass
    await etcd.administer(
        "UserGrantRole", pb.AuthUserGrantRoleRequest(user=user, role=role), pb.AuthUserGrantRoleResponse
    )
