"""What mprunner is compared with, and mprunner itself, behind the same few calls."""
