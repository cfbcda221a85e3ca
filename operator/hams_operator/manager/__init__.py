"""The manager process: the shell around `hams_protocol.recovery`. It talks to etcd and proxies, never to
Kubernetes."""
