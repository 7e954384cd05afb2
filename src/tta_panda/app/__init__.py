"""The explorer: a web page to try Panda on pictures and streams, and to browse results."""
