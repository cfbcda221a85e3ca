"""The evaluation of the HAMS paper (Zhao et al., DSN 2020), rebuilt: six services, six modes, one command."""
