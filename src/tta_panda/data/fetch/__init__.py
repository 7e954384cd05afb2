"""Download, unpack, make and check data sets on disk."""
