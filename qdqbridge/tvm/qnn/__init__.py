"""The QNN dialect and what its hosts, Relax and Relay, share.

``qnn.dialect`` holds the operators and needs TVM, of either version; nothing else in this package
imports TVM.
"""
