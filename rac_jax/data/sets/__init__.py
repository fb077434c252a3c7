"""One file a data set: where its images lie, and what its classes are called."""
