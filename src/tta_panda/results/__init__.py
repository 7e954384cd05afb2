"""Records arranged as tables and figures, as data: what `reporting` writes, prints and draws."""
