"""Load on a server with OpenAI's routes: `quire bench serve`."""
