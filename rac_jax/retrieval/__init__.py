"""From an image to its neighbours: E, the lookup in the memory, and the texts of the neighbours as tokens for T."""
