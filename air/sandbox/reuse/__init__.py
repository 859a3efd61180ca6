"""Makes a container serve several callers, one after another, because a new container takes long to start.

A container here is a box, an isolated place for commands. `resets` restores a box to the state of a new box
for the next caller. `prestarted_python` starts a Python interpreter in the box in advance, so that scripts
begin sooner; `zygote` is the module that runs in this interpreter. The other two run in the guest (air's
program inside the box). `settings` makes the part of the guest's configuration that contains them.
"""
