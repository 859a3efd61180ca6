"""Small Harbor tasks, written as real folders by `python -m tests.harbor DIR`, and tests that play them."""
