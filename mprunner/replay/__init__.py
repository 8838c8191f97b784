"""The replay memory; import it from `mprunner`."""
