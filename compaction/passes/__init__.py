"""The work of one task in each pass, free of Spark: values and bytes in, bytes and values out."""
