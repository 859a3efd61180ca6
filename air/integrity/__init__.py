"""The integrity battery: tries attacks that agents could make against tasks, to see whether an attack earns a
reward that the agent does not deserve.

`attack` defines what an attack is, `attacks` contains all attacks by family, `battery` runs them as episodes,
and `report` writes the results. `air tasks check --attacks` and `make integrity` run the battery.
"""
