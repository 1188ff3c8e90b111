"""What commands do with what they are given: checked requests, engines, output layouts, certificates, provenance."""
