"""Bounds that several modules of `hams_operator.controller` share; the unit is the last word."""

kube_pause_s = 0.5
kube_pause_max_s = 30.0
"""Pause before a broken watch is begun again, doubled each time up to the second."""

certificate_check_s = 3600.0
"""Between two looks at the certificates of the webhook, of a graph and of etcd."""

secret_tries = 5
"""Of writing a Secret that others may write at the same time, before the whole look begins again later."""

leaf_days = 30
leaf_renew_days = 10
"""The certificate of a graph's parts, of etcd and of its clients hold this long, and are replaced when less
than the second is left."""
