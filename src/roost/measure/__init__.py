"""What an endpoint does, measured from outside: answers, streams, counters."""
