"""The paper's tables and figures as experiments: each runs on any config, with one command."""
