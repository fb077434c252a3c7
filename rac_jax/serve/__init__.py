"""A run behind HTTP: an API, and a page to ask it, to see what an answer rests on, and to teach it.

    python -m rac_jax.serve --workdir=DIR

app.py has the routes, protocol.py limits the headers of requests, guard.py decides who may ask what, uploads.py reads
images from requests, batching.py joins requests into batches, service.py holds the model and makes its edits one after
another. static/ is the page.
"""
