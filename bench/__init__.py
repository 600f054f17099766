"""How fast edgepack's code is beside other runtimes: `python -m bench`, see docs/performance.md.

    models -> convert -> workers (one process per engine) -> host: CPU times     -> report
                                                          -> arm:  instructions  -> report
                                                          -> cycles: on in-order cores, and traffic
    compiled model.so -> mca: cycles and stack references of the hottest loops

Peers are installed for the benchmark only, each at a pinned version (peers.toml).
"""
