"""The wire, which the sidecar, the operator and the simulator share: peer frames, control calls, the etcd
adapter, TLS. The history writer is in `hams_history`."""
