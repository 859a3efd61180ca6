"""Merges sharded checkpoints of distributed trainers into one Hugging Face folder.

Two kinds are read: the files `model_world_size_N_rank_R.pt` of verl's FSDP trainer (`rank_files`), and
folders of `torch.distributed.checkpoint`, as prime-rl's trainer writes them (`dcp_folder`). Both modules
return `Sharded` tensors: each is a list of blocks (rectangular parts of the tensor). `merge` checks the
tensors against the model's config, and writes them.
"""
