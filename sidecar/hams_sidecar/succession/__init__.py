"""One shape of a graph takes over from another (ADR 0018): the data plane's part.

`predecessor`: a frontend that holds requests back and passes them on. `takeover`: a process that begins with
what it takes from there; `successor`: a frontend that does. `talk`: what they say to each other on visits
(`hams_wire.peers.visits`); `replies`: the predecessor's kept replies; `passing`: requests on their way to the
successor. Records and verdicts are `hams_wire.succession`'s. Nothing here touches the core but by its public
events, properties and effects.
"""
