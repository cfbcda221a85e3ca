"""Load on a graph's inference endpoint: a client, requests to send, open-loop traffic that accounts for every
answer, and what judges the answers.

The `hams` command, the benchmarks and the scenarios on a cluster use it. It knows the endpoint's protocol
and histories, and nothing of what runs the graph.
"""
