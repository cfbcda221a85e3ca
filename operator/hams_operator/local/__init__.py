"""The local runtime: the instances of a graph as processes of this machine, with an etcd of their own."""
