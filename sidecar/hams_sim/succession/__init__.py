"""A change of shape, simulated: incarnations of one graph over one etcd, a controller, clients across both.

`resource` is the world of one history; `incarnation` one graph in it, `process` what runs around the core
there, `controller` the process that decides, `store` what etcd holds beside topologies.
"""
