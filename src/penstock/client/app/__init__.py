"""The runner: handlers of records, and the threads and signals of a service made of them."""
