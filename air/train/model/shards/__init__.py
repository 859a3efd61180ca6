"""Converts a sharded checkpoint of a distributed trainer to one Hugging Face folder.

Two formats are supported: the files `model_world_size_N_rank_R.pt` that the training framework verl writes
with FSDP, fully sharded data parallelism (module `rank_files`), and folders of
`torch.distributed.checkpoint`, which the training framework prime-rl writes (module `dcp_folder`). Both
modules return `Sharded` tensors, each of which is a list of blocks (rectangular parts of the tensor). The
module `merge` checks the tensors against the model's config, and writes the folder.
"""
