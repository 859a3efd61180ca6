"""The integrity battery: plays attacks that agents could try against tasks, to see whether an attack pays.

`attack` defines what an attack is, `attacks` holds all attacks by family, `battery` plays them, and `report`
writes the results. `air tasks check --attacks` and `make integrity` run the battery.
"""
