"""A real Kubernetes of one to three nodes on one Linux machine, without Docker, systemd or a registry.

Every node is one process tree in its own pid, mount, network, uts and ipc namespaces; node 0 also runs the
control plane. Its address space has no way out of the machine, and nothing but the cache is left after
`down`.

Modules, from the ground up: `layout` (names, addresses, folders), `binaries` (Go builds, cached), `baked`
(images imported once), `certificates`, `settings` (files that components read), `components` (their command
lines), `node` (namespaces and process 1), `network` (links, cgroups), `door` (the API server on the machine's
loopback), `cluster` (all of it: up, down, stop, cut).
"""
