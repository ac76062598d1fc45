# Requests of two tenants for 25 seconds, as CSV: a wants 1500 a second, b 900, but nothing from second 5 to second 16.
BEGIN {
  print "time,tenant"
  for (ms = 0; ms < 25000; ms++) {
    at = sprintf("%d.%03d", 1767571200 + ms / 1000, ms % 1000)
    for (n = int(ms * 1.5); n < int((ms + 1) * 1.5); n++) print at ",a"
    if (ms < 5000 || ms >= 16000) for (n = int(ms * 0.9); n < int((ms + 1) * 0.9); n++) print at ",b"
  }
}
