"""Code that all worlds on remote servers share: URLs with settings, conversion of actions and observations,
and attribution of failures."""
