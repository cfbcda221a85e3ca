"""What the author of a model imports to serve it in a HAMS graph; knows the model contract only."""
