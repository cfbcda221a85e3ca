"""One shape of a graph takes over from another: a machine of the core (protocol.md, section 11; ADR 0032).

`records`: what both shapes write into etcd, and the cut that follows from it. `predecessor`: a frontend that
holds requests back, and passes them on or goes on. `takeover`: a process that begins with what it takes.
`search`: a frontend that comes after the switch. `replies`: what was answered before, as it is handed over.
`passing`: a request on its way to the successor. `decision`: when the controller takes which step.

Shells perform effects: they write etcd, dial, copy bytes and hold connections. They decide nothing.
"""
