"""Read published data sets and folders of images."""
