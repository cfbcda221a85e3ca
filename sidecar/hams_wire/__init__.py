"""What the sidecar, the operator and the simulator share: peer frames, control calls, the etcd adapter, TLS,
the history writer."""
