"""Files of any kind go in; Arrow batches of (id, text, where it came from) and unreadable records come out."""
