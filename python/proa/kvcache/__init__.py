"""KV blocks: who holds which, what can be reused, what is evicted. Imports no torch and knows no tensor."""
