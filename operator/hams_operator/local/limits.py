"""Bounds that several modules of `hams_operator.local` share; the unit is the last word."""

process_start_s = 20.0
"""A fork by the warmed process, or its end, takes no longer than this."""

restart_pause_s = 0.2
"""Pause before a process that has ended is started again; doubled each time it ends young."""

restart_young_s = 10.0
"""A process that ends within this time of its start ended young."""

hung_calm_s = 120.0
"""After this long without a replacement the next one pauses as the first one did."""
