"""The link between a proxy and its model process (proto/model.md): effects of the core in, its events out."""

from hams_sidecar.model.link import ModelHealth, ModelLink

__all__ = ["ModelHealth", "ModelLink"]
