"""The codecs of batches, and the frames that Kafka puts around them."""
