"""Float models to quantized ones: profile, plan, choose, apply; each step returns data."""
