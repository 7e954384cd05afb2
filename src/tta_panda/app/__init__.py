"""The explorer: what Panda does to pictures, streams and results, in a browser."""
