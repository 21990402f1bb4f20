"""SQLite: connections by the rules of one writer, and the hot statements row by row. Meaning lives one level up."""
