"""The event loop: a single writer that steps the machine. Imports ports and domain, and of the rest only anyio."""
