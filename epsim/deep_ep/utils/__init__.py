"""`deep_ep.utils`: what programs and tests around the buffers use."""
