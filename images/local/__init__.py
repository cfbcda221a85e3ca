"""A builder of images for Linux machines with root and without Docker: the Dockerfiles of this repository,
overlay mounts, OCI archives."""
