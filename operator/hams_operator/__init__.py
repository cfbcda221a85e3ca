"""The control plane: graphs, plans, the controller, the manager, local clusters and the `hams` command."""
