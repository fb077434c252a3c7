"""The external memory: keys and texts of images, found again by nearness."""
