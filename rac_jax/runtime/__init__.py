"""What any long job needs: folders, files, processes, signals, commands, and measurements of time and memory."""
