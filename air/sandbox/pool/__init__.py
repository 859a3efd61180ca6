"""Gives boxes (isolated places to run commands, by default Docker containers) to callers, and limits how many
exist at once.

`box_pool` contains the pool from which callers take boxes. A box needs a host slot (`host_slots`), which is
the right to have one box on this machine, and perhaps a GPU lease (`gpu_leases`), the right to use certain
GPUs. Slots and leases are file locks (`file_locks`), which all air processes of the machine share. `gpus`
detects the GPUs; `start_retry` repeats failed starts of boxes; `image_ids` caches the ids of container
images.
"""
