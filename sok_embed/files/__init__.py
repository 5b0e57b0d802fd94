"""Files of a file system: folders for work in progress, locks, writes that reach the disk."""
