"""What algorithms need beyond rewards: a reference model, a value model, a teacher."""
