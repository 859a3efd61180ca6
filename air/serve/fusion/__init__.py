"""SandboxFusion's protocol: `/run_code`, `/run_jupyter`, and the endpoints of datasets."""
