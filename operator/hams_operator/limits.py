"""Bounds that several packages of the control plane share; the unit is the last word."""

log_bytes_max = 8 << 20
"""A log file larger than this is cut; that much of its end becomes its `.1`. No more of a log is read for
`hams logs`."""

status_interval_s = 0.1
"""Between two looks at a starting graph."""

etcd_poll_s = 2.0
"""Between two looks at an etcd that does not answer."""

payload_bytes_max = 1 << 20
"""Payload bytes that a manager or an observer makes room for: nobody has any to send them."""
