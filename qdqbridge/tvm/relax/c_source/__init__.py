"""A graph as C99 sources: kernels through TVM's ``c`` target, memory planned, one function."""
