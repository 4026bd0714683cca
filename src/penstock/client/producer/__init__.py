"""The producer: records in, batches into lanes, answers back to deliveries."""
