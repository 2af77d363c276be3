"""Other systems as `make bench` starts them on this machine, beside Coterie: each from Debian, each as its own
documentation recommends for three nodes, in a folder that is removed when it is over.

They are no part of the package: they want apt, and root, and only a checkout has the page that they are for.
"""
