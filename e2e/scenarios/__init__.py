"""The rows of docs/faults.md that need a Kubernetes cluster, each under verified load: `clients` and `agent`
ask and look, `install` brings a cluster, a chart and a graph, `run` is what scenarios are written in.
"""
