"""Stock prices, forecast by two online learners that are combined into orders."""
