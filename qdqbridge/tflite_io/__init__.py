"""TFLite files read into graphs: flatbuffer, tensors, operators by a table."""
