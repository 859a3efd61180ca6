"""What worlds on other machines share: addresses with settings, and actions and observations as text."""
