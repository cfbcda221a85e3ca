"""The inference endpoint: the Open Inference Protocol v2 over HTTP and gRPC, in front of an
`InferencePort`."""

from hams_sidecar.endpoint.endpoint import Address, Endpoint
from hams_sidecar.endpoint.errors import EndpointError, StartFailed

__all__ = ["Address", "Endpoint", "EndpointError", "StartFailed"]
