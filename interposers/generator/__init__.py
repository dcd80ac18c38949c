"""Writes the generated half of the interposers from the vendor's header and the annotations.

The vendor's ``cuda.h`` says what every function of the driver API looks like; ``annotations.toml``
says what each of them means.  From both come the client stubs, the proxy's dispatch, the tracer's
table, the error names, and the reference page.
"""
