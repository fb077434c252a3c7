"""What a run finds out about its own answers with held-out images: an offset for new classes, and sets of labels."""
