"""What the benchmarks share: repeats, records, tables, pictures, simulators, child processes."""
