"""The lower half of the figure: image -> E -> key -> neighbours in the memory -> their texts -> tokens for T."""
