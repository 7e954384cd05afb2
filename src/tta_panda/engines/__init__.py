"""Where work is done: in this process, in several of this machine, or on a Ray cluster."""
