"""One model that reads short and long texts."""
