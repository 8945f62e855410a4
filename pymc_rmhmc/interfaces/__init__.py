"""What one room says to another: data and protocols, of NumPy alone. Every room may import this one."""
