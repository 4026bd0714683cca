"""The client for asyncio; `penstock.aio` exports it."""
