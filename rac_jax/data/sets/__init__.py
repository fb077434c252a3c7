"""One file per data set: where its images are, and what its classes are called."""
