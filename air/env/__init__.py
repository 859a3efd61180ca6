"""The verifiers glue: taskset, task, environment, harness and the lent runtime.

With `air.train`, the only place that imports verifiers.
"""
