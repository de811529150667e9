"""One trained head to hand out: released by fresh noise, booked, packed, and used by others."""
