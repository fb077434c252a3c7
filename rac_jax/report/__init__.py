"""What a run leaves for people: tables, pictures, TensorBoard events."""
