"""Ways to run the runners, one module each, behind the contract in ``base.py``."""
