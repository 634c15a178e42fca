"""The dashboard: static pages in ``static/``, served by ``pages.py``. No Node.js, no other host, no build step."""
