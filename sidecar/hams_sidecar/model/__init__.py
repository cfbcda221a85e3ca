"""The link between a proxy and its model process (proto/model.md): effects of the core in, its events out."""

from hams_sidecar.model.link import ModelEffect, ModelEvent, ModelLink
from hams_sidecar.model.sessions import ModelHealth

__all__ = ["ModelEffect", "ModelEvent", "ModelHealth", "ModelLink"]
