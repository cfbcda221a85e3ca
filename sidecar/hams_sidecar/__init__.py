"""The data plane's asyncio shells: the proxy process, the frontend process, the link to the model."""
