"""Inference servers, which sample the replies of the policy (the model that is trained) during a training
run: air's own server, and vLLM."""
