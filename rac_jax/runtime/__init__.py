"""What any long job needs: folders, files, processes, signals, commands, and an account of time and memory."""
