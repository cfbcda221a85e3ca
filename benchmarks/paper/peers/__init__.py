"""The same services in other systems, with the same models, device times, data and client."""
