"""The external memory: keys, labels and texts of images, stored in a folder and searched by key."""
