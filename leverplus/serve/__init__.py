"""`lever serve`: a bundle as an HTTP service, and as a proxy in front of an OpenAI-compatible server."""
