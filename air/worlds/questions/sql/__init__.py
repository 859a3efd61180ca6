"""Questions about databases that the agent answers with SQL queries, modelled on the BIRD benchmark."""
