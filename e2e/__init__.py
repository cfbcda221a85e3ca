"""End-to-end tests on a real Kubernetes cluster: the cluster itself, and the scenarios of the fault catalogue
that need one."""
