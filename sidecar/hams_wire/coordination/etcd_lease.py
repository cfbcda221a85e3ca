"""Keeping a lease of a real etcd alive: one stream, a renewal every third of the time to live, another member
when this one is silent.

What it never does: conclude from silence that a lease is gone. Only etcd's own word ends `keep`.
"""

import asyncio

import grpc.aio

from hams_wire.coordination import etcd_pb2 as pb
from hams_wire.coordination.etcd_errors import classify
from hams_wire.coordination.etcd_members import EtcdMember, Members
from hams_wire.errors import AccessDenied, AuthExpired, Closed, CoordinationError
from hams_wire.limits import etcd_probe_answer_s

registration_renewals_per_ttl = 3
"""A lease is renewed this often within its time to live."""


class LeaseRenewer:
    """Renews one lease."""

    def __init__(self, members: Members, lease: int, ttl_s: int) -> None:
        self._members = members
        self._lease = lease
        self._interval_s = ttl_s / registration_renewals_per_ttl
        self._answer_s = min(etcd_probe_answer_s, self._interval_s)
        self.renewals = 0

    async def keep(self, member: EtcdMember) -> bool:
        """Renew through `member` for as long as it answers: True when etcd says that the lease is gone, False
        when another member should go on."""
        try:
            stream = member.keep_alive(await member.metadata())
        except AccessDenied:
            raise
        except CoordinationError:
            return self._pass_over(member)
        try:
            while True:
                await stream.write(pb.LeaseKeepAliveRequest(ID=self._lease), self._answer_s)
                response = await stream.read(self._answer_s)
                if response is None:
                    return self._pass_over(member)
                if response.TTL <= 0:
                    return True
                self.renewals += 1
                await asyncio.sleep(self._interval_s)
        except TimeoutError:
            return self._pass_over(member)
        except grpc.aio.AioRpcError as error:
            refused = classify(error, "LeaseKeepAlive", member.address)
            if isinstance(refused, AccessDenied | Closed):
                raise refused from None
            if isinstance(refused, AuthExpired):
                member.forget_token()
                return False
            return self._pass_over(member)
        finally:
            await stream.close()

    def _pass_over(self, member: EtcdMember) -> bool:
        self._members.pass_over(member)
        return False
