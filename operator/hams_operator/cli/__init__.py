"""The `hams` command (api.md, section 4). `main` declares it; a module per command does the work and is
imported when it is asked for."""
