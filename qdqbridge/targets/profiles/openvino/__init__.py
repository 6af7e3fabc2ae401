"""Profile ``openvino``: what OpenVINO takes, computes wrongly, and how files are written for it."""
