"""WSGI applications, for uWSGI or mod_wsgi."""
