"""The controller: turns ServiceGraphs into the objects of `hams_operator.plan`, level-triggered, and tells
their truth in their status.

An event only enqueues a key. One worker per graph looks at everything that is known of it, applies the
difference, and writes the status. It is not on the way of a request, nor of a failover: managers move roles
whether or not it lives.
"""
