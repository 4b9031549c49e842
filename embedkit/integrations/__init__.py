"""Adapters that plug embedkit into other libraries, a module per library.

Each is a thin class over `Encoder` or `Index` that imports its library when it is imported. An extra installs both:
``pip install 'embedkit[langchain]'`` and so on.
"""
