"""What training reads: tables of examples, checks of them, tokenized texts, and the order of the batches."""
