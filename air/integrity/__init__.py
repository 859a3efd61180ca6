"""The integrity battery: a set of attacks, such as an agent under training might learn. The battery runs them
against tasks, to see whether an attack earns a reward that the agent does not deserve.

`attack` defines what an attack is, `attacks` contains all attacks by family (their goal), `battery` runs them
as episodes, and `report` writes the results. The commands `air tasks check --attacks` and `make integrity`
run the battery. `tools_and_checkers` has attacks on tools and answer checkers, and `gate` checks Harbor
tasks.
"""
