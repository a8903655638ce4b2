"""What a node shows of itself and of others: status, metrics, recorder, reports, the web page."""
