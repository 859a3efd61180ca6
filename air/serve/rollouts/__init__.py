"""The server `air serve rollouts`. On a client's request, it plays episodes of air's tasks with a model that
another server runs; the request contains the URL of that server."""
