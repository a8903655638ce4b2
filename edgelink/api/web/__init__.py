"""The web page on the head: login, the model that it shows, and the server; the page itself is in ``static/``."""
