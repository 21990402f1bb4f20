"""PostgreSQL: connections, and the hot statements as this dialect does them best. Meaning lives one level up."""
