"""From a compiled graph, its topology and what Kubernetes holds to what Kubernetes should hold. Pure: no
clock, no input or output.

desired(graph, place, settings)     the objects of a graph
difference(wanted, held)            what to apply and what to delete
overdue(...)                        pods whose instances the graph has given up
status_of(...)                      the status that is true now
news(before, now)                   what a person wants to see as Events
"""
