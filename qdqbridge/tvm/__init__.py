"""TVM as a host: the QNN dialect, Relax, Relay, kernels, and BYOC."""
