"""Questions about databases, answered with SQL, after BIRD."""
