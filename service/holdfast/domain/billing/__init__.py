"""From events and prices to milliseconds and micro-dollars: bill, phases, rate, provider rules, allocation, running cost."""
