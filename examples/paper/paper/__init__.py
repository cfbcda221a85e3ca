"""Six services of the HAMS paper (Zhao et al., DSN 2020): their models, emulated or real, and their data."""
