"""What training starts from: an E that was trained for the data, weights files, class means, a discriminant."""
