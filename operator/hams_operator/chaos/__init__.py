"""Chaos against a graph on Kubernetes: the rows of docs/faults.md that need a cluster, written once.

port          what a scenario may do to a graph, and ask of it
scenarios     the scenarios and their catalogue: which pods, in which order, and what is waited for
live          a graph on somebody's own cluster, under load (`hams chaos run`); e2e/scenarios has one on a
              cluster of its own
report        what the load saw of it

Whoever runs a scenario says how the cluster is reached: nothing here knows the command line.
"""
