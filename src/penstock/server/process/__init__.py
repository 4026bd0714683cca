"""The node's child processes: started when needed, watched, replaced when dead."""
