"""Small programs to read and run: `hello`, `batch`, `retries`, and `demo`, which shows it all."""
