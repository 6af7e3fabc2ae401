"""LSTM, GRU and RNN of float32."""
