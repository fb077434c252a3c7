"""Output for people: tables, pictures, TensorBoard events, the page of a run."""
