"""Tables, figures and pages, all made from records."""
