"""Tables, plots and pages, all derived from records."""
