"""The formats that arrays are stored in, one module each: how to open them and write them.

``open_file(path, dataset, files)`` gives what has the numbers (``shape``, ``dtype``, slices of it
and, if stored in parts, ``chunks``) and what the file says about them, as values for attributes of
a StoredArray; ``files`` is where it leaves what is to be closed. ``save(writer, *places)`` writes
the rows that a CubeWriter has collected to one or more new files.
"""
