"""Files of every room: places, records, checks of JSON, whole writes, folders for work, locks."""
