"""The client: connecting, producing, consuming, transactions, administration."""
