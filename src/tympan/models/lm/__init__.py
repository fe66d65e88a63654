"""Language models: recurrent and Transformer, with ESPnet2's options and parameter names."""
