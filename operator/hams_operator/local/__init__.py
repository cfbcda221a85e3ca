"""The local runtime: the instances of a graph as processes of this machine, with an etcd of their own."""

import os

# gRPC's fork handlers serve programs that use gRPC on both sides of a fork. Here children are executed at
# once, and each start would print a line about skipped handlers. Read when gRPC is first used, so it stands
# before whatever imports it.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
