"""Dead letters for those who look after them: what they tell, how many, sent again, removed."""
