"""Every method a second time, as plain code to read beside their description; nothing here imports the package."""
