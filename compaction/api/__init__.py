"""From the parameters of a call to checked requests, engines, output layouts, certificates and provenance."""
