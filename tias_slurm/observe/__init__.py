"""What the daemon shows of itself: to systemd, to Prometheus."""
