"""Container images: Dockerfiles, the wheels they take, and a builder for machines without one."""
